//! What a footer tells of its row groups.

use std::thread;

use parquet::errors::Result;
use parquet::file::metadata::{
    ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader,
    ParquetStatisticsPolicy,
};
use parquet::schema::types::Type;

use crate::errors::{guarded, odd, panicked};
use crate::thrift::{LIST, Reader, STRUCT, is_number};

/// The most items of a list in a footer, and the most columns in each other: the crate `parquet`
/// descends into each, and the stack has an end.
const ITEMS_MAX: u64 = 100_000;
const DEPTH_MAX: usize = 64;
/// The least bytes of a schema element with children, and what the crate takes on the stack for
/// one within another: 850, measured. So much stack threads have, but for those of musl.
const ELEMENT_BYTES: usize = 7;
const FRAME_BYTES: usize = 1536;
const STACK_BYTES: usize = 2 * 1024 * 1024;
/// Fields of parquet.thrift: those of `FileMetaData` that are lists of structs (the schema, row
/// groups, pairs of metadata, orders of columns), and `num_children` of `SchemaElement`.
const SCHEMA: i64 = 2;
const LISTS: [i64; 4] = [SCHEMA, 4, 5, 7];
const NUM_CHILDREN: i64 = 5;

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
///
/// The crate descends into each column of the schema, and reads numbers that the check before may
/// pass over, because it looks at no types. So it gets as much stack as there may be elements.
pub fn parsed(footer: &[u8]) -> Result<ParquetMetaData> {
    check_form(footer).ok_or_else(|| odd("the footer is too large, too deep, or cut short"))?;
    let stack_size = footer.len() / ELEMENT_BYTES * FRAME_BYTES;
    if stack_size <= STACK_BYTES {
        return read(footer);
    }
    thread::scope(|scope| {
        let builder = thread::Builder::new().stack_size(stack_size + STACK_BYTES);
        let reader = builder.spawn_scoped(scope, || guarded(|| read(footer)))?;
        reader.join().map_err(|panic| panicked(&*panic))?
    })
}

fn read(footer: &[u8]) -> Result<ParquetMetaData> {
    let skip = ParquetStatisticsPolicy::SkipAll;
    let options = ParquetMetaDataOptions::new()
        .with_column_stats_policy(skip.clone())
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

/// Return None for a footer that would take too much memory or stack.
fn check_form(footer: &[u8]) -> Option<()> {
    let mut reader = Reader::new(footer);
    reader.fields(0, |reader, field, wire| {
        if wire != LIST || !LISTS.contains(&field) {
            return reader.skip(wire, 0);
        }
        // The children that are still to come, of each group around the next element.
        let mut around: Vec<i64> = Vec::new();
        reader.items(1, |reader, number, wire| {
            if number >= ITEMS_MAX {
                return None;
            }
            if field != SCHEMA || wire != STRUCT {
                return reader.skip(wire, 1);
            }
            let children = children(reader)?;
            if let Some(last) = around.last_mut() {
                *last -= 1;
            }
            around.push(children);
            while around.last().is_some_and(|left| *left <= 0) {
                around.pop();
            }
            (around.len() <= DEPTH_MAX).then_some(())
        })
    })
}

/// Read a schema element; return how many children it has.
fn children(reader: &mut Reader) -> Option<i64> {
    let mut children = 0;
    reader.fields(2, |reader, field, wire| {
        if field == NUM_CHILDREN && is_number(wire) {
            children = reader.signed()?;
            return Some(());
        }
        reader.skip(wire, 2)
    })?;
    Some(children)
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
