//! The headers of pages, as far as they tell how much memory a page takes.
//!
//! The crate `parquet` unpacks a page of any size that its header tells, so it is asked before.

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::formats::{DATA_PAGE, DATA_PAGE_V2, DICTIONARY_PAGE, PAGE};
use crate::thrift::{Met, Reader};

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
        pages.push((page.kind, page.unpacked, page.stored, page.size, page.values));
        let size = usize::try_from(page.stored).ok().and_then(|size| size.checked_add(page.size));
        match size.and_then(|size| rest.get(size..)) {
            Some(after) => rest = after,
            None => break,
        }
    }
    pages
}

/// The header of a page: its numbers by parquet.thrift.
pub struct Header {
    pub kind: i64,
    pub unpacked: i64,
    pub stored: i64,
    pub values: i64,
    /// The bytes of levels that are never packed, before the values that may be.
    pub levels: i64,
    pub is_packed: bool,
    /// The bytes of the header itself.
    pub size: usize,
}

/// Return the header of the page that begins so; None if it is not whole, or odd. Pages of indexes
/// have no values, and no reader passes over them alike.
pub fn header(start: &[u8]) -> Option<Header> {
    let (mut numbers, mut values, mut levels) = ([None; 5], [None; 4], 0);
    let mut is_packed = true;
    let mut reader = Reader {
        rest: start,
        see: |shape, field, met| {
            let Met::Number(number) = met else { return Some(()) };
            let kind = [&DATA_PAGE, &PAGE, &DICTIONARY_PAGE, &DATA_PAGE_V2]
                .iter()
                .position(|known| shape.is(known));
            match (kind, field) {
                (Some(1), _) => *numbers.get_mut(usize::try_from(field).ok()?)? = Some(number),
                (Some(kind), 1) => values[kind] = Some(number),
                (Some(3), 5 | 6) => levels += number.max(0),
                (Some(3), 7) => is_packed = number == 1,
                _ => {}
            }
            Some(())
        },
    };
    reader.walk(&PAGE, 0)?;
    let size = start.len() - reader.rest.len();
    let [_, Some(kind), Some(unpacked), Some(stored), _] = numbers else { return None };
    let number = (*values.get(usize::try_from(kind).ok()?)?)?;
    // What other kinds of pages have, the crate would believe too.
    let is_sound = unpacked.min(stored).min(number) >= 0 && values.iter().flatten().count() == 1;
    is_sound.then_some(Header { kind, unpacked, stored, values: number, levels, is_packed, size })
}
