//! Whether a page has what its header and its column promise.
//!
//! The crate `parquet` believes levels that are too high, levels and indexes that end early, and
//! sizes that are too large, and makes rows of them. So each page is walked over before it is
//! decoded. What is refused here, pyarrow judges. It holds whatever was taken before: pyarrow
//! refuses no page that passes, which `tests/support/parquet_fuzz.py` tries.

use bytes::Bytes;
use parquet::basic::{Encoding, Repetition, Type};
use parquet::column::page::{Page, PageMetadata};
use parquet::errors::Result;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::schema::types::Type as SchemaType;

use crate::deltas;
use crate::errors::odd;
use crate::lists::BatchValues;
use crate::runs::{Run, Runs, unpack};

/// So many levels are looked at together.
const LEVELS: usize = 1024;

/// The checks of one column chunk, page by page.
pub struct PageChecks {
    definition: Levels,
    repetition: Levels,
    /// The least definition level of an entry of each of the lists around each other.
    entries: Vec<u8>,
    physical: Type,
    /// The bytes of a value in the encoding PLAIN, where all have as many.
    size: Option<usize>,
    /// Whether a page goes on with the last text of the page before it.
    carries_texts: bool,
    last_text: Vec<u8>,
    has_begun: bool,
    /// The levels that are still to come, by the footer.
    left: usize,
    pub values: BatchValues,
}

/// A page's parts. Without levels there are as many rows as values.
struct Parts<'a> {
    values: usize,
    encoding: Encoding,
    repetition: &'a [u8],
    definition: &'a [u8],
    /// Where the values begin.
    start: usize,
}

impl PageChecks {
    /// `root`: the outermost of the chunk's column. `carries_texts`: as parquet-mr wrote texts that
    /// begin like others before 1.8 (PARQUET-246).
    pub fn new(
        root: &SchemaType,
        chunk: &ColumnChunkMetaData,
        carries_texts: bool,
        values: BatchValues,
    ) -> Result<Self> {
        let column = chunk.column_descr();
        let physical = column.physical_type();
        let size = match physical {
            Type::INT32 | Type::FLOAT => Some(4),
            Type::INT64 | Type::DOUBLE => Some(8),
            Type::INT96 => Some(12),
            Type::FIXED_LEN_BYTE_ARRAY => usize::try_from(column.type_length()).ok(),
            Type::BOOLEAN | Type::BYTE_ARRAY => None,
        };
        Ok(Self {
            definition: Levels::new(column.max_def_level())?,
            repetition: Levels::new(column.max_rep_level())?,
            entries: entries_of(root, column.path().parts()),
            physical,
            size,
            carries_texts,
            last_text: Vec::new(),
            has_begun: false,
            left: usize::try_from(chunk.num_values())?,
            values,
        })
    }

    /// Pass over a page that is not read.
    pub fn skip(&mut self, page: &PageMetadata) -> Result<()> {
        self.values.skip(page.num_rows.unwrap_or_default());
        self.pass(page.num_levels.or(page.num_rows).unwrap_or_default())
    }

    /// Refuse more levels than the footer says; readers stop at different ones.
    fn pass(&mut self, levels: usize) -> Result<()> {
        self.left = self
            .left
            .checked_sub(levels)
            .ok_or_else(|| odd("a column has more values than its footer says"))?;
        Ok(())
    }

    /// Refuse fewer levels than the footer says.
    pub fn finish(&self) -> Result<()> {
        if self.left == 0 {
            Ok(())
        } else {
            Err(odd("a column has fewer values than its footer says"))
        }
    }

    /// Return whether a page can be understood without the one before it.
    pub fn may_skip(&self) -> bool {
        !self.carries_texts
    }

    /// Check a page. Returns it as it is to be decoded.
    pub fn take(&mut self, page: Page) -> Result<Page> {
        if let Page::DictionaryPage { buf, num_values, encoding, .. } = &page {
            if !matches!(encoding, Encoding::PLAIN | Encoding::PLAIN_DICTIONARY) {
                return Err(odd("a dictionary has another encoding than PLAIN"));
            }
            let count = *num_values as usize;
            if self.physical == Type::BYTE_ARRAY && !has_texts(buf, count) {
                return Err(short());
            }
            self.check_values(Encoding::PLAIN, buf, count)?;
            return Ok(page);
        }
        let levels = self.parts(&page)?.values;
        self.pass(levels)?;
        let parts = self.parts(&page)?;
        let (rows, values) = if self.repetition.max > 0 {
            self.count_lists(&parts, matches!(page, Page::DataPageV2 { .. }))?
        } else {
            (parts.values, self.definition.count_highest(parts.definition, parts.values)?)
        };
        self.has_begun = true;
        if let Page::DataPageV2 { num_rows, num_nulls, .. } = &page
            && (*num_rows as usize != rows || *num_nulls as usize != parts.values - values)
        {
            return Err(odd("the levels of a page contradict its header"));
        }
        let (encoding, start) = (parts.encoding, parts.start);
        let plain = self.check_values(encoding, &page.buffer()[start..], values)?;
        Ok(match plain {
            Some(plain) => with_plain(page, start, &plain),
            None => page,
        })
    }

    /// Check the levels of lists; return the rows and values.
    fn count_lists(&mut self, parts: &Parts, begins_a_row: bool) -> Result<(usize, usize)> {
        let highest = (self.repetition.max, self.definition.max);
        let mut repetition = Runs::new(parts.repetition, self.repetition.width, parts.values);
        let mut definition = Runs::new(parts.definition, self.definition.width, parts.values);
        let (mut rows, mut values, mut left) = (0, 0, parts.values);
        let (mut repeated, mut defined) = ([0; LEVELS], [0; LEVELS]);
        while left > 0 {
            let count = left.min(LEVELS);
            let (repeated, defined) = (&mut repeated[..count], &mut defined[..count]);
            repetition.fill(repeated)?;
            definition.fill(defined)?;
            if highest_of(repeated) > highest.0 || highest_of(defined) > highest.1 {
                return Err(too_high());
            }
            // What goes on with a list is an entry of it.
            let is_odd = (1..).zip(&self.entries).any(|(depth, entry)| {
                let pairs = repeated.iter().zip(&*defined);
                let odd = pairs.map(|(r, d)| u8::from(*r == depth) & u8::from(d < entry));
                odd.fold(0, |found, odd| found | odd) > 0
            });
            let is_first = left == parts.values && (begins_a_row || !self.has_begun);
            if is_odd || (is_first && repeated[0] > 0) {
                return Err(odd("a list goes on that has not begun"));
            }
            let starts = counted(repeated, 0);
            rows += starts;
            values += counted(defined, highest.1);
            self.values.take(repeated, starts)?;
            left -= count;
        }
        Ok((rows, values))
    }

    fn parts<'a>(&self, page: &'a Page) -> Result<Parts<'a>> {
        Ok(match page {
            Page::DictionaryPage { .. } => return Err(odd("a dictionary has no levels")),
            Page::DataPage {
                buf,
                num_values,
                encoding,
                def_level_encoding,
                rep_level_encoding,
                ..
            } => {
                let repetition = self.repetition.sized(buf, 0, *rep_level_encoding)?;
                let behind = repetition.1;
                let definition = self.definition.sized(buf, behind, *def_level_encoding)?;
                Parts {
                    values: *num_values as usize,
                    encoding: *encoding,
                    repetition: repetition.0,
                    definition: definition.0,
                    start: definition.1,
                }
            }
            Page::DataPageV2 {
                buf,
                num_values,
                encoding,
                def_levels_byte_len,
                rep_levels_byte_len,
                ..
            } => {
                let (repetition, rest) =
                    buf.split_at_checked(*rep_levels_byte_len as usize).ok_or_else(short)?;
                let (definition, values) =
                    rest.split_at_checked(*def_levels_byte_len as usize).ok_or_else(short)?;
                Parts {
                    values: *num_values as usize,
                    encoding: *encoding,
                    repetition,
                    definition,
                    start: buf.len() - values.len(),
                }
            }
        })
    }

    /// Check that there are `count` values. Returns them in the encoding PLAIN if they are to be
    /// decoded so.
    fn check_values(
        &mut self,
        encoding: Encoding,
        data: &[u8],
        count: usize,
    ) -> Result<Option<Vec<u8>>> {
        let is_whole = match (encoding, self.physical) {
            _ if count == 0 => true,
            // The crate counts the texts of a page, but not those of a dictionary.
            (Encoding::PLAIN, Type::BYTE_ARRAY) => true,
            (Encoding::PLAIN, Type::BOOLEAN) => data.len() >= count.div_ceil(8),
            (Encoding::PLAIN | Encoding::BYTE_STREAM_SPLIT, _) => self.is_long_enough(data, count),
            (Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY, _) => {
                let (width, indexes) = data.split_first().ok_or_else(short)?;
                if *width > 32 {
                    return Err(odd("the indexes of a dictionary have too many bits"));
                }
                Runs::new(indexes, usize::from(*width), count).check()?;
                true
            }
            (Encoding::RLE, Type::BOOLEAN) => {
                let (size, rest) = data.split_first_chunk::<4>().ok_or_else(short)?;
                let flags = rest.get(..u32::from_le_bytes(*size) as usize).ok_or_else(short)?;
                Runs::new(flags, 1, count).check()?;
                true
            }
            // The difference of two numbers has a bit more than they have.
            (Encoding::DELTA_BINARY_PACKED, Type::INT32) => {
                deltas::walk(data, 33, count, |_, _, _, _| ()).is_some()
            }
            (Encoding::DELTA_BINARY_PACKED, Type::INT64) => {
                deltas::walk(data, 64, count, |_, _, _, _| ()).is_some()
            }
            (Encoding::DELTA_LENGTH_BYTE_ARRAY, Type::BYTE_ARRAY) => {
                deltas::texts(data, count).is_some()
            }
            (Encoding::DELTA_BYTE_ARRAY, Type::BYTE_ARRAY | Type::FIXED_LEN_BYTE_ARRAY) => {
                let texts = deltas::SharedTexts::new(data, count).ok_or_else(short)?;
                let is_whole = texts.are_whole(self.last_text.len(), self.size);
                if is_whole && self.carries_texts {
                    return texts.plain(&mut self.last_text, self.size).map(Some);
                }
                is_whole
            }
            _ => false,
        };
        if is_whole { Ok(None) } else { Err(odd("a page has not the values that it counts")) }
    }

    fn is_long_enough(&self, data: &[u8], count: usize) -> bool {
        self.size.and_then(|size| size.checked_mul(count)).is_some_and(|size| size <= data.len())
    }
}

/// The levels of a column, of which `max` is the highest.
struct Levels {
    max: u8,
    width: usize,
}

impl Levels {
    fn new(max: i16) -> Result<Self> {
        let max = u8::try_from(max)?;
        Ok(Self { max, width: (u8::BITS - max.leading_zeros()) as usize })
    }

    /// Return the levels that begin at `start` with their size, and where they end.
    fn sized<'a>(
        &self,
        page: &'a [u8],
        start: usize,
        encoding: Encoding,
    ) -> Result<(&'a [u8], usize)> {
        if self.max == 0 {
            return Ok((&[], start));
        }
        if encoding != Encoding::RLE {
            return Err(odd("levels have a deprecated encoding"));
        }
        let rest = page.get(start..).ok_or_else(short)?;
        let (size, rest) = rest.split_first_chunk::<4>().ok_or_else(short)?;
        let size = u32::from_le_bytes(*size) as usize;
        Ok((rest.get(..size).ok_or_else(short)?, start + 4 + size))
    }

    /// Return how many of the levels are the highest: so many have a value.
    fn count_highest(&self, levels: &[u8], count: usize) -> Result<usize> {
        if self.max == 0 {
            return Ok(count);
        }
        let mut values = 0;
        for run in Runs::new(levels, self.width, count) {
            let mut most = 0;
            match run? {
                Run::Equal { count, value } => {
                    most = value;
                    values += if most == u32::from(self.max) { count } else { 0 };
                }
                Run::Packed { count, bytes } if self.width == 1 => values += ones(bytes, count),
                Run::Packed { count, bytes } => unpack(bytes, self.width, count, |level| {
                    most = most.max(level);
                    values += usize::from(level == u32::from(self.max));
                }),
            }
            if most > u32::from(self.max) {
                return Err(too_high());
            }
        }
        Ok(values)
    }
}

/// Return the least definition level of an entry of each of the lists around a leaf.
fn entries_of(root: &SchemaType, path: &[String]) -> Vec<u8> {
    let (mut entries, mut level, mut node) = (vec![], 0, root);
    for name in path.iter().skip(1).map(Some).chain([None]) {
        match node.get_basic_info().repetition() {
            Repetition::REQUIRED => {}
            Repetition::OPTIONAL => level += 1,
            Repetition::REPEATED => {
                level += 1;
                entries.push(level);
            }
        }
        if !node.is_group() {
            break;
        }
        let next = node.get_fields().iter().find(|field| Some(field.name()) == name.map(|n| &**n));
        let Some(next) = next else { break };
        node = next;
    }
    entries
}

/// Return whether there are `count` texts behind their sizes.
fn has_texts(mut data: &[u8], count: usize) -> bool {
    (0..count).all(|_| {
        let text = data
            .split_first_chunk::<4>()
            .and_then(|(size, rest)| rest.get(u32::from_le_bytes(*size) as usize..));
        data = text.unwrap_or_default();
        text.is_some()
    })
}

fn highest_of(levels: &[u8]) -> u8 {
    levels.iter().fold(0, |most, level| most.max(*level))
}

/// Return how many of the levels are `wanted`.
fn counted(levels: &[u8], wanted: u8) -> usize {
    let few = levels.chunks(usize::from(u8::MAX));
    few.map(|few| usize::from(few.iter().map(|level| u8::from(*level == wanted)).sum::<u8>())).sum()
}

fn too_high() -> parquet::errors::ParquetError {
    odd("a level is above the highest of its column")
}

/// Return how many of the first `count` bits are set.
fn ones(bytes: &[u8], count: usize) -> usize {
    let (whole, rest) = bytes.split_at((count / 8).min(bytes.len()));
    let last = rest.first().map_or(0, |byte| byte & !(0xFF << (count % 8)));
    let (eights, rest) = whole.as_chunks::<8>();
    let ones: u32 = eights.iter().map(|eight| u64::from_ne_bytes(*eight).count_ones()).sum();
    let more: u32 = rest.iter().chain([&last]).map(|byte| byte.count_ones()).sum();
    (ones + more) as usize
}

/// Return a page with other values, in the encoding PLAIN, behind the same levels.
fn with_plain(mut page: Page, start: usize, plain: &[u8]) -> Page {
    let bytes: Bytes = [&page.buffer()[..start], plain].concat().into();
    if let Page::DataPage { buf, encoding, .. } | Page::DataPageV2 { buf, encoding, .. } = &mut page
    {
        (*buf, *encoding) = (bytes, Encoding::PLAIN);
    }
    page
}

fn short() -> parquet::errors::ParquetError {
    odd("a page is cut short")
}
