//! Levels and indexes of dictionaries: runs of one number, and of numbers packed into bits
//! (Encodings.md, "RLE / Bit-Packing Hybrid").

use parquet::errors::Result;

use crate::errors::odd;
use crate::thrift::varint;

/// A run: `count` times one number, or `count` numbers of the width of all runs.
#[derive(Clone, Copy)]
pub enum Run<'a> {
    Equal { count: usize, value: u32 },
    Packed { count: usize, bytes: &'a [u8] },
}

/// The runs of `left` numbers.
pub struct Runs<'a> {
    data: &'a [u8],
    width: usize,
    left: usize,
    /// The run that [`Self::fill`] is in, and how many numbers of it are passed.
    begun: Run<'a>,
    passed: usize,
}

impl<'a> Runs<'a> {
    /// Numbers of `width` bits, at most 32.
    pub fn new(data: &'a [u8], width: usize, left: usize) -> Self {
        Self { data, width, left, begun: Run::Equal { count: 0, value: 0 }, passed: 0 }
    }

    /// Refuse numbers that end before the last of them.
    pub fn check(mut self) -> Result<()> {
        self.try_for_each(|run| run.map(|_| ()))
    }

    fn run(&mut self) -> Result<Run<'a>> {
        let head = varint(&mut self.data).ok_or_else(short)?;
        let count = usize::try_from(head >> 1)?;
        if count == 0 {
            return Err(odd("a run of no numbers"));
        }
        let size = if head & 1 == 0 {
            Some(self.width.div_ceil(8))
        } else {
            count.checked_mul(self.width)
        };
        let (bytes, rest) =
            size.and_then(|size| self.data.split_at_checked(size)).ok_or_else(short)?;
        self.data = rest;
        let run = if head & 1 == 0 {
            let value = bytes.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte));
            Run::Equal { count: count.min(self.left), value }
        } else {
            Run::Packed { count: count.saturating_mul(8).min(self.left), bytes }
        };
        self.left -= run.count();
        Ok(run)
    }

    /// Take the next numbers, of at most 8 bits each; larger ones become 255.
    pub fn fill(&mut self, numbers: &mut [u8]) -> Result<()> {
        let mut rest = numbers;
        while !rest.is_empty() {
            if self.passed == self.begun.count() {
                (self.begun, self.passed) = (self.next().ok_or_else(short)??, 0);
            }
            let count = rest.len().min(self.begun.count() - self.passed);
            let (own, after) = rest.split_at_mut(count);
            match self.begun {
                Run::Equal { value, .. } => own.fill(u8::try_from(value).unwrap_or(u8::MAX)),
                Run::Packed { bytes, .. } => unpack_few(bytes, self.width, self.passed, own),
            }
            self.passed += count;
            rest = after;
        }
        Ok(())
    }
}

impl Run<'_> {
    fn count(&self) -> usize {
        match self {
            Self::Equal { count, .. } | Self::Packed { count, .. } => *count,
        }
    }
}

impl<'a> Iterator for Runs<'a> {
    type Item = Result<Run<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        (self.left > 0).then(|| self.run())
    }
}

/// Unpack numbers of at most 8 bits from the one at `start` on.
fn unpack_few(bytes: &[u8], width: usize, mut start: usize, mut numbers: &mut [u8]) {
    // Eight numbers are in so many bytes as they have bits. They are moved apart by halves.
    let lowest = |count: usize| u64::MAX >> (64 - count * width);
    let (four, two, one) = (lowest(4), lowest(2) * 0x1_0000_0001, lowest(1) * 0x1_0001_0001_0001);
    while !numbers.is_empty() {
        let (group, into) = (start / 8 * width, start % 8);
        let mut eight = [0; 8];
        eight[..width].copy_from_slice(&bytes[group..group + width]);
        let mut packed = u64::from_le_bytes(eight);
        packed = (packed & four) | (packed >> (4 * width) & four) << 32;
        packed = (packed & two) | (packed >> (2 * width) & two) << 16;
        packed = (packed & one) | (packed >> width & one) << 8;
        let count = numbers.len().min(8 - into);
        let (own, rest) = numbers.split_at_mut(count);
        own.copy_from_slice(&packed.to_le_bytes()[into..into + count]);
        (numbers, start) = (rest, start + count);
    }
}

/// Call `take` with each of the packed numbers, of at most 32 bits.
pub fn unpack(bytes: &[u8], width: usize, count: usize, mut take: impl FnMut(u32)) {
    let mask = (1_u64 << width) - 1;
    let (mut held, mut bits) = (0_u64, 0);
    let mut words = bytes.chunks(4).map(|bytes| {
        let mut word = [0; 4];
        word[..bytes.len()].copy_from_slice(bytes);
        u32::from_le_bytes(word)
    });
    for _ in 0..count {
        if bits < width {
            held |= u64::from(words.next().unwrap_or_default()) << bits;
            bits += 32;
        }
        #[allow(clippy::cast_possible_truncation)] // the mask has at most 32 bits
        take((held & mask) as u32);
        held >>= width;
        bits -= width;
    }
}

fn short() -> parquet::errors::ParquetError {
    odd("the levels or indexes of a page are cut short")
}
