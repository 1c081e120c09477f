//! The least and the largest values of row groups, as their statistics say them.

use parquet::errors::Result;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetStatisticsPolicy};
use parquet::file::statistics::Statistics;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::errors::{guarded, to_python};
use crate::footer::parsed_with;

/// The least value, the largest one, and the number of nulls, if it is known.
type Bounds = (i64, i64, Option<u64>);

/// Return for each row group the bounds of these leaves: None where a leaf's are not known, or are
/// no whole numbers. Raises `ValueError`.
#[pyfunction]
pub fn bounds(
    py: Python<'_>,
    footer: PyBackedBytes,
    leaves: Vec<usize>,
) -> PyResult<Vec<Vec<Option<Bounds>>>> {
    let read = || -> Result<Vec<Vec<Option<Bounds>>>> {
        let metadata = parsed_with(&footer, ParquetStatisticsPolicy::skip_except(&leaves))?;
        let groups = metadata.row_groups().iter();
        Ok(groups
            .map(|group| {
                let chunks = leaves.iter().map(|leaf| group.columns().get(*leaf));
                chunks.map(|chunk| chunk.and_then(of_chunk)).collect()
            })
            .collect())
    };
    py.detach(|| guarded(read)).map_err(|e| to_python(&e))
}

fn of_chunk(chunk: &ColumnChunkMetaData) -> Option<Bounds> {
    let (least, largest, nulls) = match chunk.statistics()? {
        Statistics::Int32(of) => {
            (i64::from(*of.min_opt()?), i64::from(*of.max_opt()?), of.null_count_opt())
        }
        Statistics::Int64(of) => (*of.min_opt()?, *of.max_opt()?, of.null_count_opt()),
        _ => return None,
    };
    (least <= largest).then_some((least, largest, nulls))
}
