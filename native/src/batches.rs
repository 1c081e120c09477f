//! The rows of a row group, as Arrow batches.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;

use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, Fields, Schema, SchemaRef};
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, RowSelection, RowSelector};
use parquet::errors::Result;

use crate::columns::Group;
use crate::errors::{guarded, odd, panicked};

/// The batches of a row group. Its columns are shared out among threads.
pub struct Batches {
    parts: Vec<ParquetRecordBatchReader>,
    /// The part and the number in it of each column, in the order of the file.
    places: Vec<(usize, usize)>,
    schema: SchemaRef,
}

impl Batches {
    pub fn new(
        mut group: Group,
        fields: &Fields,
        leaves: &[usize],
        rows_max: usize,
        threads: usize,
    ) -> Result<Self> {
        let first = group.first;
        let rest = group.rows.checked_sub(first).ok_or_else(|| odd("no such row"))?;
        let selection: Option<RowSelection> =
            (first > 0).then(|| vec![RowSelector::skip(first), RowSelector::select(rest)].into());
        // A batch has room for as many rows as are asked for, whether they come or not.
        group.batch_rows = rows_max.min(rest).max(1);
        let mut parts = Vec::new();
        let mut columns = BTreeMap::new();
        let descriptor = group.metadata.file_metadata().schema_descr();
        for own in shares(&group, leaves, threads) {
            let part = group.reader(fields, &own, selection.clone())?;
            let mut roots: Vec<_> =
                own.iter().map(|leaf| descriptor.get_column_root_idx(*leaf)).collect();
            roots.sort_unstable();
            roots.dedup();
            for (number, root) in roots.into_iter().enumerate() {
                let field = Arc::clone(
                    part.schema().fields().get(number).ok_or_else(|| odd("no such column"))?,
                );
                columns.insert(root, ((parts.len(), number), field));
            }
            parts.push(part);
        }
        let (places, fields): (Vec<_>, Vec<_>) = columns.into_values().unzip();
        Ok(Self { parts, places, schema: Arc::new(Schema::new(fields)) })
    }

    fn batch(&mut self) -> Result<Option<RecordBatch>> {
        let batches: Vec<Option<RecordBatch>> = thread::scope(|scope| {
            let Some((own, others)) = self.parts.split_first_mut() else { return Ok(vec![]) };
            let running: Vec<_> = others
                .iter_mut()
                .map(|part| scope.spawn(move || part.next().transpose()))
                .collect();
            let mut batches = vec![own.next().transpose()?];
            for other in running {
                batches.push(other.join().map_err(|panic| panicked(&*panic))??);
            }
            Ok::<_, parquet::errors::ParquetError>(batches)
        })?;
        if batches.iter().all(Option::is_none) {
            return Ok(None);
        }
        let batches: Option<Vec<RecordBatch>> = batches.into_iter().collect();
        let batches = batches.ok_or_else(|| odd("a column has too few rows"))?;
        let columns =
            self.places.iter().map(|(part, at)| Arc::clone(batches[*part].column(*at))).collect();
        // This refuses columns of different lengths.
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns)?;
        check_keys(&batch)?;
        Ok(Some(batch))
    }
}

impl Iterator for Batches {
    type Item = std::result::Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = guarded(|| self.batch());
        if batch.is_err() {
            self.parts.clear();
        }
        batch.map_err(ArrowError::from).transpose()
    }
}

impl RecordBatchReader for Batches {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

/// Refuse maps with a key that is null: pyarrow would end the process.
pub fn check_keys(batch: &RecordBatch) -> Result<()> {
    for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
        if field.data_type().is_nested() && has_null_key(column) {
            let name = field.name();
            return Err(odd(&format!("a map of the column '{name}' has a key that is null")));
        }
    }
    Ok(())
}

fn has_null_key(array: &dyn Array) -> bool {
    if let Some(map) = array.as_map_opt() {
        map.keys().null_count() > 0 || has_null_key(map.keys()) || has_null_key(map.values())
    } else if let Some(list) = array.as_list_opt::<i32>() {
        has_null_key(list.values())
    } else if let Some(list) = array.as_list_opt::<i64>() {
        has_null_key(list.values())
    } else if let Some(group) = array.as_struct_opt() {
        group.columns().iter().any(|column| has_null_key(column))
    } else {
        false
    }
}

/// Share the columns out: those with most bytes first, each to who has least.
fn shares(group: &Group, leaves: &[usize], threads: usize) -> Vec<Vec<usize>> {
    let descriptor = group.metadata.file_metadata().schema_descr();
    let mut columns: BTreeMap<usize, (i64, Vec<usize>)> = BTreeMap::new();
    for leaf in leaves {
        let Some(chunk) = group.numbers.columns().get(*leaf) else { continue };
        let column = columns.entry(descriptor.get_column_root_idx(*leaf)).or_default();
        column.0 = column.0.saturating_add(chunk.uncompressed_size());
        column.1.push(*leaf);
    }
    let mut columns: Vec<_> = columns.into_values().collect();
    columns.sort_by_key(|(size, _)| -size);
    let mut shares = vec![(0_i64, Vec::new()); threads.clamp(1, columns.len().max(1))];
    for (size, leaves) in columns {
        if let Some(least) = shares.iter_mut().min_by_key(|(held, _)| *held) {
            least.0 = least.0.saturating_add(size);
            least.1.extend(leaves);
        }
    }
    shares.into_iter().map(|(_, leaves)| leaves).filter(|leaves| !leaves.is_empty()).collect()
}
