//! What a footer tells of its row groups.

use std::mem::take;
use std::thread;

use parquet::errors::Result;
use parquet::file::metadata::{
    ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader,
    ParquetStatisticsPolicy,
};
use parquet::schema::types::Type;

use crate::errors::{guarded, odd, panicked};
use crate::formats::{
    COLUMN, FILE, LOGICAL_TYPE, ROW_GROUP, SCHEMA_ELEMENT, SIZE_STATISTICS, STATISTICS,
};
use crate::thrift::{Met, Reader, Shape};

/// The most items of a list in a footer, and the most columns in each other: the crate `parquet`
/// descends into each, and the stack has an end.
const ITEMS_MAX: u64 = 100_000;
const DEPTH_MAX: usize = 64;
/// The least bytes of a schema element with children, and what the crate takes on the stack for
/// one within another: 850, measured. So much stack threads have, but for those of musl.
const ELEMENT_BYTES: usize = 7;
const FRAME_BYTES: usize = 1536;
const STACK_BYTES: usize = 2 * 1024 * 1024;
/// The repetitions of parquet.thrift: the third is "optional".
const REQUIRED: i64 = 0;
const REPEATED: i64 = 2;

/// A chunk's physical type, codec, mask of encodings, values, unpacked bytes, start and size.
type Chunk = (i64, i64, i64, i64, i64, i64, i64);

/// A row group's rows, bytes and chunks.
pub type RowGroup = (i64, i64, Vec<Option<Chunk>>);

/// Return each row group. A chunk is None if it is in another file, or if one of its numbers can't
/// be right.
pub fn groups_of(metadata: &ParquetMetaData) -> Vec<RowGroup> {
    let chunks = |group: &[ColumnChunkMetaData]| group.iter().map(chunk).collect();
    let groups = metadata.row_groups().iter();
    groups
        .map(|group| (group.num_rows(), group.total_byte_size(), chunks(group.columns())))
        .collect()
}

/// Parse a footer, the Thrift struct alone, without its statistics.
pub fn parsed(footer: &[u8]) -> Result<ParquetMetaData> {
    parsed_with(footer, ParquetStatisticsPolicy::SkipAll)
}

/// Parse a footer with some of its statistics.
///
/// The crate descends into each column of the schema, and reads numbers that the check before may
/// pass over, because it looks at no types. So it gets as much stack as there may be elements.
pub fn parsed_with(footer: &[u8], kept: ParquetStatisticsPolicy) -> Result<ParquetMetaData> {
    check_form(footer).ok_or_else(|| odd("the footer is too large, too deep, or cut short"))?;
    let stack_size = footer.len() / ELEMENT_BYTES * FRAME_BYTES;
    if stack_size <= STACK_BYTES {
        return read(footer, kept);
    }
    thread::scope(|scope| {
        let builder = thread::Builder::new().stack_size(stack_size + STACK_BYTES);
        let reader = builder.spawn_scoped(scope, || guarded(|| read(footer, kept)))?;
        reader.join().map_err(|panic| panicked(&*panic))?
    })
}

fn read(footer: &[u8], kept: ParquetStatisticsPolicy) -> Result<ParquetMetaData> {
    let skip = ParquetStatisticsPolicy::SkipAll;
    let options = ParquetMetaDataOptions::new()
        .with_column_stats_policy(kept)
        .with_size_stats_policy(skip.clone())
        .with_encoding_stats_policy(skip);
    let metadata = ParquetMetaDataReader::decode_metadata_with_options(footer, Some(&options))?;
    if depth(metadata.file_metadata().schema()) > DEPTH_MAX {
        return Err(odd("the columns are nested too deeply"));
    }
    for group in metadata.row_groups() {
        if group.num_rows() < 0 || group.total_byte_size() < 0 {
            return Err(odd("a size is negative"));
        }
        for column in group.columns() {
            let data = column.data_page_offset();
            if column.dictionary_page_offset().is_some_and(|at| at <= 0 || at >= data) {
                return Err(odd("a dictionary does not lie before its column's values"));
            }
            if column.file_path().is_none() && chunk(column).is_none() {
                return Err(odd("a number of a column is negative"));
            }
        }
    }
    Ok(metadata)
}

/// Return how deeply columns are nested.
fn depth(root: &Type) -> usize {
    let (mut deepest, mut rest) = (0, vec![(root, 1)]);
    while let Some((column, depth)) = rest.pop() {
        deepest = deepest.max(depth);
        if column.is_group() {
            rest.extend(column.get_fields().iter().map(|field| (field.as_ref(), depth + 1)));
        }
    }
    deepest
}

/// Refuse a footer that would take too much memory or stack, that has other types than it should,
/// or whose columns are not those of its schema: the crate believes the schema.
fn check_form(footer: &[u8]) -> Option<()> {
    let mut form = Form::default();
    Reader { rest: footer, see: |shape: &'static Shape, field, met| form.see(shape, field, &met) }
        .walk(&FILE, 0)
}

/// What a walk over a footer has met.
#[derive(Default)]
struct Form {
    /// The groups around the next element: the children that are still to come, and the levels.
    around: Vec<(i64, u64, u64)>,
    element: Element,
    /// The type of each leaf, and its highest levels of repetition and definition.
    leaves: Vec<(i64, u64, u64)>,
    /// The leaves of the row group that have begun.
    begun: usize,
}

/// The numbers of a schema element, and the field of its logical type.
#[derive(Default)]
struct Element {
    kind: Option<i64>,
    repetition: i64,
    children: i64,
    converted: Option<i64>,
    logical: Option<i64>,
}

impl Form {
    fn see(&mut self, shape: &Shape, field: i64, met: &Met) -> Option<()> {
        let leaf = |number: usize| self.leaves.get(number.checked_sub(1)?);
        match *met {
            Met::Items(size) if size > ITEMS_MAX => None,
            Met::Items(size) if shape.is(&SIZE_STATISTICS) => {
                let (_, repetition, definition) = leaf(self.begun)?;
                let levels = if field == 2 { repetition } else { definition };
                (size == 0 || size == levels + 1).then_some(())
            }
            Met::Text(size) if shape.is(&STATISTICS) => {
                // The least and the largest value: other readers decode them.
                let sizes = [1, 4, 8, 12, 4, 8];
                let kind = usize::try_from(leaf(self.begun)?.0).ok()?;
                sizes.get(kind).is_none_or(|wanted| *wanted == size).then_some(())
            }
            Met::Number(kind) if shape.is(&COLUMN) && field == 1 => {
                self.begun += 1;
                (leaf(self.begun)?.0 == kind).then_some(())
            }
            Met::End if shape.is(&ROW_GROUP) => {
                self.begun = 0;
                Some(())
            }
            Met::Struct if shape.is(&LOGICAL_TYPE) => {
                self.element.logical = Some(field);
                Some(())
            }
            Met::Number(number) if shape.is(&SCHEMA_ELEMENT) => {
                match field {
                    1 => self.element.kind = Some(number),
                    3 => self.element.repetition = number,
                    5 => self.element.children = number,
                    6 => self.element.converted = Some(number),
                    _ => {}
                }
                Some(())
            }
            Met::End if shape.is(&SCHEMA_ELEMENT) => {
                let element = take(&mut self.element);
                self.add(element)
            }
            _ => Some(()),
        }
    }

    /// Take the next element of the schema, by its depth first.
    fn add(&mut self, element: Element) -> Option<()> {
        let Element { kind, repetition, children, converted, logical } = element;
        let (mut repeated, mut defined) = (0, 0);
        if let Some(last) = self.around.last_mut() {
            last.0 -= 1;
            repeated = last.1 + u64::from(repetition == REPEATED);
            defined = last.2 + u64::from(repetition != REQUIRED);
        }
        if children > 0 {
            // A list or a map is called so twice, and nothing else.
            let is_one = matches!(
                (converted, logical),
                (None, _) | (Some(1..=3), None) | (Some(3), Some(3)) | (Some(1 | 2), Some(2))
            );
            is_one.then_some(())?;
        } else if let Some(kind) = kind {
            self.leaves.push((kind, repeated, defined));
        }
        self.around.push((children, repeated, defined));
        while self.around.last().is_some_and(|group| group.0 <= 0) {
            self.around.pop();
        }
        (self.around.len() <= DEPTH_MAX).then_some(())
    }
}

fn chunk(chunk: &ColumnChunkMetaData) -> Option<Chunk> {
    let data = chunk.data_page_offset();
    let start = chunk.dictionary_page_offset().filter(|at| 0 < *at && *at < data).unwrap_or(data);
    let found = (
        chunk.column_type() as i64,
        chunk.compression_codec() as i64,
        i64::from(chunk.encodings_mask().as_i32()),
        chunk.num_values(),
        chunk.uncompressed_size(),
        start,
        chunk.compressed_size(),
    );
    let least = found.2.min(found.3).min(found.4).min(found.5).min(found.6);
    (chunk.file_path().is_none() && least >= 0).then_some(found)
}
