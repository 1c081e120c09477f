//! The headers of pages, as far as they tell how much memory a page takes.
//!
//! The crate `parquet` unpacks a page of any size that its header tells, so it is asked before.

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::thrift::{Reader, STRUCT, is_number};

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
    let mut reader = Reader::new(start);
    let mut numbers = [None; 3];
    let mut values = 0;
    reader.fields(0, |reader, field, wire| {
        if (1..=3).contains(&field) && is_number(wire) {
            numbers[usize::try_from(field - 1).ok()?] = Some(reader.signed()?);
            return Some(());
        }
        if wire == STRUCT && OF_KINDS.contains(&field) {
            return reader.fields(1, |reader, field, wire| {
                if field == 1 && is_number(wire) {
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
    let size = start.len() - reader.left();
    let least = kind.min(unpacked).min(stored).min(values);
    (least >= 0).then_some((kind, unpacked, stored, size, values))
}
