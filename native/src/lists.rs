//! How many values the rows of one batch have in a repeated column.
//!
//! A run of repetition levels takes some bytes and stands for up to 2^31 values of one row, for all
//! of which the crate `parquet` takes memory at once. An allocation that fails ends the process, so
//! the levels are counted before the page is decoded.

use parquet::errors::Result;

use crate::errors::odd;

/// The most values of one column that are decoded at once.
const VALUES_MAX: usize = 16 * 1024 * 1024;
/// What the caller looks for in the error: fewer rows at once may fit.
const TOO_MANY: &str = "the rows of a batch have too many values";

/// A count over the pages of one column chunk.
pub struct BatchValues {
    batch_rows: usize,
    /// The row behind the current batch.
    end: usize,
    /// The rows that have begun, and the values of those of them in the current batch.
    rows: usize,
    values: usize,
    is_skipped: bool,
}

impl BatchValues {
    /// Count the values of a column. Rows before `first` are not decoded.
    pub fn new(first: usize, batch_rows: usize) -> Self {
        let (end, is_skipped) = if first > 0 { (first, true) } else { (batch_rows, false) };
        Self { batch_rows, end, rows: 0, values: 0, is_skipped }
    }

    /// Take the rows of a page that is not read.
    pub fn skip(&mut self, rows: usize) {
        self.start(rows);
    }

    /// Count repetition levels, of which `starts` are 0. Refuses too many values for a batch.
    pub fn take(&mut self, levels: &[u8], starts: usize) -> Result<()> {
        if self.rows + starts <= self.end {
            self.rows += starts;
            return self.more(levels.len());
        }
        levels.iter().try_for_each(|level| {
            if *level == 0 {
                self.start(1);
                return Ok(());
            }
            self.more(1)
        })
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
