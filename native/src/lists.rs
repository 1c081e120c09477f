//! How many values the rows of one batch have in a repeated column.
//!
//! A run of repetition levels takes some bytes and stands for up to 2^31 values of one row, for all
//! of which the crate `parquet` takes memory at once. An allocation that fails ends the process, so
//! the levels are counted before the page is decoded.

use parquet::basic::Encoding;
use parquet::column::page::Page;
use parquet::errors::Result;

use crate::errors::odd;

/// The most values of one column that are decoded at once.
const VALUES_MAX: usize = 16 * 1024 * 1024;
/// What the caller looks for in the error: fewer rows at once may fit.
const TOO_MANY: &str = "the rows of a batch have too many values";

/// A count over the pages of one column chunk.
pub struct BatchValues {
    width: u32,
    batch_rows: usize,
    /// The row behind the current batch.
    end: usize,
    /// The rows that have begun, and the values of those of them in the current batch.
    rows: usize,
    values: usize,
    is_skipped: bool,
}

impl BatchValues {
    /// Count the values of a column whose lists are nested so deep. Rows before `first` are not
    /// decoded.
    pub fn new(depth: i16, first: usize, batch_rows: usize) -> Self {
        let width = i16::BITS - depth.unsigned_abs().leading_zeros();
        let (end, is_skipped) = if first > 0 { (first, true) } else { (batch_rows, false) };
        Self { width, batch_rows, end, rows: 0, values: 0, is_skipped }
    }

    /// Take the rows of a page that is not read.
    pub fn skip(&mut self, rows: usize) {
        self.start(rows);
    }

    /// Count a page. Refuses one with too many values for a batch.
    pub fn take(&mut self, page: &Page) -> Result<()> {
        match page {
            _ if self.width == 0 => Ok(()),
            Page::DictionaryPage { .. } => Ok(()),
            Page::DataPageV2 { buf, num_values, rep_levels_byte_len, .. } => {
                let levels = buf.get(..*rep_levels_byte_len as usize);
                self.levels(levels.ok_or_else(short)?, *num_values as usize)
            }
            Page::DataPage { buf, num_values, rep_level_encoding: Encoding::RLE, .. } => {
                let (size, rest) = buf.split_first_chunk::<4>().ok_or_else(short)?;
                let levels = rest.get(..u32::from_le_bytes(*size) as usize);
                self.levels(levels.ok_or_else(short)?, *num_values as usize)
            }
            Page::DataPage { num_values, .. } => self.more(*num_values as usize),
        }
    }

    fn levels(&mut self, mut data: &[u8], mut left: usize) -> Result<()> {
        while left > 0 {
            let head = varint(&mut data)?;
            let count = usize::try_from(head >> 1)?;
            if head & 1 == 0 {
                let count = count.min(left);
                let bytes = self.width.div_ceil(8) as usize;
                let value = data.get(..bytes).ok_or_else(short)?;
                if value.iter().all(|byte| *byte == 0) {
                    self.start(count);
                } else {
                    self.more(count)?;
                }
                (data, left) = (&data[bytes..], left - count.max(1));
            } else {
                let size = count.checked_mul(self.width as usize).ok_or_else(short)?;
                // The last groups may be cut short.
                let (packed, rest) = data.split_at(size.min(data.len()));
                let count = count.saturating_mul(8).min(left);
                self.packed(packed, count)?;
                (data, left) = (rest, left - count.max(1).min(left));
            }
        }
        Ok(())
    }

    fn packed(&mut self, data: &[u8], count: usize) -> Result<()> {
        if self.width == 1 && count / 8 <= data.len() {
            let (whole, rest) = data.split_at(count / 8);
            for byte in whole {
                let starts = byte.count_zeros() as usize;
                if self.rows + starts <= self.end {
                    self.rows += starts;
                    self.more(8)?;
                } else {
                    (0..8).try_for_each(|bit| self.level(byte >> bit & 1 == 0))?;
                }
            }
            let last = rest.first().copied().unwrap_or_default();
            return (0..count % 8).try_for_each(|bit| self.level(last >> bit & 1 == 0));
        }
        let bit = |at: usize| data.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1);
        let width = self.width as usize;
        (0..count).try_for_each(|i| self.level(!(i * width..(i + 1) * width).any(bit)))
    }

    fn level(&mut self, starts: bool) -> Result<()> {
        if starts {
            self.start(1);
            return Ok(());
        }
        self.more(1)
    }

    /// Begin rows, of one value each so far.
    fn start(&mut self, count: usize) {
        self.rows = self.rows.saturating_add(count);
        if self.rows <= self.end {
            self.values = self.values.saturating_add(count);
            return;
        }
        self.is_skipped = false;
        let into = (self.rows - self.end - 1) % self.batch_rows + 1;
        self.end = self.rows.saturating_add(self.batch_rows - into);
        self.values = into;
    }

    fn more(&mut self, count: usize) -> Result<()> {
        self.values = self.values.saturating_add(count);
        if self.values > VALUES_MAX && !self.is_skipped {
            return Err(odd(TOO_MANY));
        }
        Ok(())
    }
}

fn short() -> parquet::errors::ParquetError {
    odd("the levels of a page are cut short")
}

fn varint(data: &mut &[u8]) -> Result<u32> {
    let mut value = 0;
    for shift in (0..35).step_by(7) {
        let (byte, rest) = data.split_first().ok_or_else(short)?;
        *data = rest;
        value |= u32::from(byte & 0x7F).checked_shl(shift).unwrap_or(0);
        if *byte < 0x80 {
            return Ok(value);
        }
    }
    Err(short())
}
