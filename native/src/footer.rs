//! What a footer tells of its row groups.

use parquet::file::metadata::{
    ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader,
    ParquetStatisticsPolicy,
};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::errors::{guarded, odd};

/// A chunk's physical type, codec, mask of encodings, values, unpacked bytes, start and size.
type Chunk = (i64, i64, i64, i64, i64, i64, i64);

/// A row group's rows, bytes and chunks.
type RowGroup = (i64, i64, Vec<Option<Chunk>>);

/// Return each row group as (rows, bytes, chunks); None if the footer can't be read.
///
/// A chunk is None if it is in another file, or if one of its numbers can't be right.
#[pyfunction]
pub fn groups(py: Python<'_>, footer: PyBackedBytes) -> Option<Vec<RowGroup>> {
    let metadata = py.detach(|| guarded(|| parsed(&footer))).ok()?;
    let groups = metadata.row_groups();
    let chunks = |group: &[ColumnChunkMetaData]| group.iter().map(chunk).collect();
    Some(
        groups
            .iter()
            .map(|group| (group.num_rows(), group.total_byte_size(), chunks(group.columns())))
            .collect(),
    )
}

/// Parse a footer, the Thrift struct alone, without its statistics.
pub fn parsed(footer: &[u8]) -> parquet::errors::Result<ParquetMetaData> {
    let skip = ParquetStatisticsPolicy::SkipAll;
    let options = ParquetMetaDataOptions::new()
        .with_column_stats_policy(skip.clone())
        .with_size_stats_policy(skip.clone())
        .with_encoding_stats_policy(skip);
    let metadata = ParquetMetaDataReader::decode_metadata_with_options(footer, Some(&options))?;
    for group in metadata.row_groups() {
        if group.num_rows() < 0 || group.total_byte_size() < 0 {
            return Err(odd("a size is negative"));
        }
    }
    Ok(metadata)
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
