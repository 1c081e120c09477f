//! Numbers that are packed as their differences, and texts whose sizes are (Encodings.md, "Delta
//! Encoding" and the two after it).

use parquet::errors::Result;

use crate::errors::odd;
use crate::runs::unpack;
use crate::thrift::{varint, zigzag};

/// The most numbers in a miniblock; parquet-mr has 32, others up to 256.
const MINIBLOCK_MAX: u64 = 64 * 1024;
/// Texts that share their beginnings may unpack to so many times their bytes, or to so many bytes.
const TIMES_MAX: usize = 100;
const BYTES_MAX: usize = 64 * 1024 * 1024;
/// The most texts of a page: their sizes are held.
const COUNT_MAX: usize = 4 * 1024 * 1024;
/// The differences of sizes have at most so many.
const SIZE_BITS: u8 = 32;

/// Walk over `count` numbers; their differences have up to `bits`. Calls `take` for each miniblock
/// with the least difference, the width of what is packed beside it, how many numbers there are,
/// and their bytes. Returns the first number, and what is left of the data.
pub fn walk(
    mut data: &[u8],
    bits: u8,
    count: usize,
    mut take: impl FnMut(i64, usize, usize, &[u8]),
) -> Option<(i64, &[u8])> {
    let rest = &mut data;
    let (block, minis, total) = (varint(rest)?, varint(rest)?, varint(rest)?);
    let first = zigzag(rest)?;
    let size = block.checked_div(minis)?;
    if total != count as u64 || block % 128 != 0 || size % 32 != 0 || size > MINIBLOCK_MAX {
        return None;
    }
    let (size, minis) = (usize::try_from(size).ok()?, usize::try_from(minis).ok()?);
    let mut left = count.saturating_sub(1);
    while left > 0 && size > 0 {
        let least = zigzag(rest)?;
        let (widths, mut packed) = rest.split_at_checked(minis)?;
        for width in widths {
            let numbers = size.min(left);
            if numbers == 0 {
                break;
            }
            if *width > bits {
                return None;
            }
            let width = usize::from(*width);
            let (bytes, after) = packed.split_at_checked(size * width / 8)?;
            take(least, width, numbers, bytes);
            (packed, left) = (after, left - numbers);
        }
        *rest = packed;
    }
    (left == 0).then_some((first, data))
}

/// Return the sizes of `count` texts, and what is left of the data.
pub fn sizes(data: &[u8], count: usize) -> Option<(Vec<u32>, &[u8])> {
    if count > COUNT_MAX {
        return None;
    }
    let mut head = data;
    let first = (0..3).all(|_| varint(&mut head).is_some()).then(|| zigzag(&mut head))??;
    let (mut size, mut odd) = (first, first >> 31);
    let mut sizes = Vec::with_capacity(count);
    sizes.extend(u32::try_from(first).ok().filter(|_| count > 0));
    let (_, rest) = walk(data, SIZE_BITS, count, |least, width, numbers, bytes| {
        unpack(bytes, width, numbers, |number| {
            size = size.wrapping_add(least).wrapping_add(i64::from(number));
            odd |= size >> 31;
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // seen by `odd`
            sizes.push(size as u32);
        });
    })?;
    (odd == 0).then_some((sizes, rest))
}

/// Return the sizes of `count` texts that lie behind them, and the texts.
pub fn texts(data: &[u8], count: usize) -> Option<(Vec<u32>, &[u8])> {
    let (sizes, texts) = sizes(data, count)?;
    let all: u64 = sizes.iter().map(|size| u64::from(*size)).sum();
    (all <= texts.len() as u64).then_some((sizes, texts))
}

/// Texts of which each may begin as the one before.
pub struct SharedTexts<'a> {
    shared: Vec<u32>,
    own: Vec<u32>,
    texts: &'a [u8],
}

impl<'a> SharedTexts<'a> {
    pub fn new(data: &'a [u8], count: usize) -> Option<Self> {
        let (shared, rest) = sizes(data, count)?;
        let (own, texts) = texts(rest, count)?;
        Some(Self { shared, own, texts })
    }

    /// Return whether there is as much of each text as the next one begins with, `last` bytes
    /// before the first; and whether all have `fixed` bytes, if that is given.
    pub fn are_whole(&self, last: usize, fixed: Option<usize>) -> bool {
        let mut last = last as u64;
        let fixed = fixed.map(|size| size as u64);
        self.shared.iter().zip(&self.own).all(|(shared, own)| {
            let is_whole = u64::from(*shared) <= last;
            last = u64::from(*shared) + u64::from(*own);
            is_whole && fixed.is_none_or(|size| size == last)
        })
    }

    /// Return the texts in the encoding PLAIN, behind their sizes if these are not `fixed`. The
    /// first begins as `last`, which becomes the last one.
    pub fn plain(&self, last: &mut Vec<u8>, fixed: Option<usize>) -> Result<Vec<u8>> {
        let most = BYTES_MAX.max(self.texts.len().saturating_mul(TIMES_MAX));
        let (mut plain, mut rest) = (Vec::new(), self.texts);
        for (shared, own) in self.shared.iter().zip(&self.own) {
            let (text, after) = rest.split_at(*own as usize);
            last.truncate(*shared as usize);
            last.extend_from_slice(text);
            if fixed.is_none() {
                plain.extend_from_slice(&u32::try_from(last.len())?.to_le_bytes());
            }
            plain.extend_from_slice(last);
            if plain.len() > most {
                return Err(odd("texts would take too much memory"));
            }
            rest = after;
        }
        Ok(plain)
    }
}
