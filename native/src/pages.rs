//! The headers of pages, as far as they tell how much memory a page takes.
//!
//! The crate `parquet` unpacks a page of any size that its header tells, so it is asked before.

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

/// The wire types of Thrift's compact protocol.
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const I16: u8 = 4;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const STRUCT: u8 = 12;
const DEPTH_MAX: u32 = 32;
/// The fields of a page's header with what pages of a kind have, their number of values first.
const OF_KINDS: [i64; 3] = [5, 7, 8];

/// A page's kind, by parquet.thrift; its bytes, unpacked and stored; those of its header; and its
/// values, nulls included.
pub type PageSize = (i64, i64, i64, usize, i64);

/// Return the sizes of the pages that begin so, until one of them is not whole, or odd.
#[pyfunction]
pub fn page_sizes(start: PyBackedBytes) -> Vec<PageSize> {
    sizes(&start)
}

/// Return the size of the longest of texts that lie behind their sizes.
#[pyfunction]
pub fn longest(texts: PyBackedBytes) -> usize {
    longest_of(&texts)
}

pub fn longest_of(mut rest: &[u8]) -> usize {
    let mut most = 0;
    while let Some((size, after)) = rest.split_first_chunk::<4>() {
        let size = u32::from_le_bytes(*size) as usize;
        let Some(next) = after.get(size..) else { break };
        (most, rest) = (most.max(size), next);
    }
    most
}

pub fn sizes(mut rest: &[u8]) -> Vec<PageSize> {
    let mut pages = Vec::new();
    while let Some(page) = header(rest) {
        pages.push(page);
        let size = usize::try_from(page.2).ok().and_then(|stored| stored.checked_add(page.3));
        match size.and_then(|size| rest.get(size..)) {
            Some(after) => rest = after,
            None => break,
        }
    }
    pages
}

/// Return the sizes of the page that begins so; None if its header is not whole, or odd.
pub fn header(start: &[u8]) -> Option<PageSize> {
    let mut reader = Reader { rest: start };
    let mut numbers = [None; 3];
    let mut values = 0;
    reader.fields(0, |reader, field, wire| {
        if (1..=3).contains(&field) && (I16..=I64).contains(&wire) {
            numbers[usize::try_from(field - 1).ok()?] = Some(reader.signed()?);
            return Some(());
        }
        if wire == STRUCT && OF_KINDS.contains(&field) {
            return reader.fields(1, |reader, field, wire| {
                if field == 1 && (I16..=I64).contains(&wire) {
                    values = reader.signed()?;
                    return Some(());
                }
                reader.skip(wire, 1)
            });
        }
        reader.skip(wire, 0)
    })?;
    let [kind, unpacked, stored] = numbers;
    let (kind, unpacked, stored) = (kind?, unpacked?, stored?);
    let size = start.len() - reader.rest.len();
    let least = kind.min(unpacked).min(stored).min(values);
    (least >= 0).then_some((kind, unpacked, stored, size, values))
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*byte)
    }

    fn pass(&mut self, size: u64) -> Option<()> {
        self.rest = self.rest.get(usize::try_from(size).ok()?..)?;
        Some(())
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn signed(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// Call `take` with each field of a struct, its number and wire type.
    fn fields(
        &mut self,
        depth: u32,
        mut take: impl FnMut(&mut Self, i64, u8) -> Option<()>,
    ) -> Option<()> {
        if depth > DEPTH_MAX {
            return None;
        }
        let mut number = 0_i64;
        loop {
            let byte = self.byte()?;
            if byte == 0 {
                return Some(());
            }
            if byte >> 4 == 0 {
                let zigzag = self.varint()?;
                number = (zigzag >> 1).cast_signed() ^ -(zigzag & 1).cast_signed();
            } else {
                number = number.checked_add(i64::from(byte >> 4))?;
            }
            take(self, number, byte & 0x0F)?;
        }
    }

    fn skip(&mut self, wire: u8, depth: u32) -> Option<()> {
        match wire {
            TRUE | FALSE => Some(()),
            BYTE => self.pass(1),
            I16..=I64 => self.varint().map(|_| ()),
            DOUBLE => self.pass(8),
            BINARY => {
                let size = self.varint()?;
                self.pass(size)
            }
            LIST | SET => self.skip_list(depth + 1),
            STRUCT => self.fields(depth + 1, |reader, _, wire| reader.skip(wire, depth + 1)),
            _ => None,
        }
    }

    fn skip_list(&mut self, depth: u32) -> Option<()> {
        if depth > DEPTH_MAX {
            return None;
        }
        let head = self.byte()?;
        let size = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
        if size > self.rest.len() as u64 {
            return None; // each item takes at least a byte
        }
        // In a list a flag takes a byte.
        let wire = if matches!(head & 0x0F, TRUE | FALSE) { BYTE } else { head & 0x0F };
        (0..size).try_for_each(|_| self.skip(wire, depth))
    }
}
