//! Many small files of one form, in one call and on all cores.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use arrow_array::RecordBatch;
use arrow_pyarrow::PyArrowType;
use arrow_schema::Fields;
use arrow_select::concat::concat_batches;
use bytes::Bytes;
use parquet::errors::Result;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, RowGroupMetaData};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::batches::check_keys;
use crate::columns::Group;
use crate::errors::{guarded, odd, panicked};
use crate::footer::parsed;
use crate::pages::sizes;
use crate::source::Source;
use crate::types::fields_of;

/// So few files are not worth another thread.
const FILES_A_THREAD: usize = 8;
/// Of row groups up to this size, some rows may be decoded although each may be as large.
const LARGEST_BYTES: usize = 512 * 1024;
const ROWS_MIN: usize = 256;

/// What a batch may take: rows; bytes by the footers; and bytes when it is decoded.
#[derive(Clone, Copy)]
struct Bounds {
    rows: usize,
    stored_bytes: usize,
    bytes: usize,
}

struct File {
    source: Arc<Source>,
    content: Bytes,
    metadata: ParquetMetaData,
    rows: usize,
    bytes: usize,
}

/// Decode the first files that are alike and within `bounds`: (rows, bytes by the footers, bytes).
///
/// `names` are the top-level columns that are wanted. Return the rows of each file and all of them
/// together; without these, the files have to be decoded one by one. Last, whether that is because
/// they outgrew the bounds.
#[pyfunction]
pub fn small_files(
    py: Python<'_>,
    contents: Vec<PyBackedBytes>,
    names: Vec<String>,
    bounds: (usize, usize, usize),
    threads: usize,
) -> (Vec<usize>, Option<PyArrowType<RecordBatch>>, bool) {
    let (rows, stored_bytes, bytes) = bounds;
    let bounds = Bounds { rows, stored_bytes, bytes };
    py.detach(|| {
        let files = alike(contents, bounds);
        let counts = files.iter().map(|file| file.rows).collect();
        if files.len() < 2 {
            return (counts, None, false);
        }
        let held = AtomicUsize::new(0);
        let rows = guarded(|| together(&files, &names, bounds, threads, &held));
        let outgrown = rows.is_err() && held.load(Ordering::Relaxed) > bounds.bytes;
        (counts, rows.ok().map(PyArrowType), outgrown)
    })
}

/// Return the first files whose footers are equal but for their row groups.
fn alike(contents: Vec<PyBackedBytes>, bounds: Bounds) -> Vec<File> {
    let mut files: Vec<File> = Vec::new();
    let (mut rows, mut bytes) = (0_usize, 0_usize);
    for content in contents {
        let Ok(file) = guarded(|| opened(content)) else { break };
        (rows, bytes) = (rows.saturating_add(file.rows), bytes.saturating_add(file.bytes));
        if files.first().is_some_and(|first| {
            rows > bounds.rows || bytes > bounds.stored_bytes || !is_alike(first, &file)
        }) {
            break;
        }
        files.push(file);
    }
    files
}

fn is_alike(one: &File, other: &File) -> bool {
    let (one, other) = (one.metadata.file_metadata(), other.metadata.file_metadata());
    one.schema_descr() == other.schema_descr()
        && one.created_by() == other.created_by()
        && one.key_value_metadata() == other.key_value_metadata()
}

fn opened(content: PyBackedBytes) -> Result<File> {
    let content = Bytes::from_owner(content);
    let short = || odd("the file is too short");
    let (rest, tail) = content.split_last_chunk::<8>().ok_or_else(short)?;
    let [s0, s1, s2, s3, magic @ ..] = tail;
    if magic != b"PAR1" {
        return Err(odd("the file does not end as Parquet does"));
    }
    let size = u32::from_le_bytes([*s0, *s1, *s2, *s3]) as usize;
    let start = rest.len().checked_sub(size).ok_or_else(short)?;
    let metadata = parsed(&rest[start..])?;
    let groups = metadata.row_groups();
    groups.iter().try_for_each(check_values)?;
    let rows: i64 = groups.iter().map(RowGroupMetaData::num_rows).sum();
    if rows != metadata.file_metadata().num_rows() {
        return Err(odd("the numbers of rows contradict each other"));
    }
    let bytes: i64 = groups.iter().map(RowGroupMetaData::total_byte_size).sum();
    let (rows, bytes) = (usize::try_from(rows)?, usize::try_from(bytes)?);
    Ok(File { source: Arc::new(Source::Memory(content.clone())), content, metadata, rows, bytes })
}

/// Refuse flat columns that have not a value for each row.
fn check_values(group: &RowGroupMetaData) -> Result<()> {
    let is_odd = |chunk: &ColumnChunkMetaData| {
        chunk.column_descr().max_rep_level() == 0 && chunk.num_values() != group.num_rows()
    };
    if group.columns().iter().any(is_odd) {
        return Err(odd("a column has another number of values than there are rows"));
    }
    Ok(())
}

fn together(
    files: &[File],
    names: &[String],
    bounds: Bounds,
    threads: usize,
    held: &AtomicUsize,
) -> Result<RecordBatch> {
    let descriptor = files[0].metadata.file_metadata().schema_descr();
    let fields = fields_of(descriptor, &[])?;
    let leaves: Vec<usize> = (0..descriptor.num_columns())
        .filter(|leaf| names.iter().any(|name| name == descriptor.get_column_root(*leaf).name()))
        .collect();
    let largest = files.iter().flat_map(|file| file.metadata.row_groups());
    let largest = largest.map(RowGroupMetaData::total_byte_size).max().unwrap_or(0);
    let largest = usize::try_from(largest)?.max(1);
    // With a dictionary, each row may have a value that is as large as its row group.
    let least = if largest <= LARGEST_BYTES { ROWS_MIN } else { 1 };
    let step = (bounds.bytes / largest).max(least).min(bounds.rows);
    let decode = |share: &[File]| decoded(share, &fields, &leaves, step, bounds.bytes, held);
    let threads = threads.min(files.len() / FILES_A_THREAD).max(1);
    let batches = thread::scope(|scope| {
        let mut shares = files.chunks(files.len().div_ceil(threads));
        let own = shares.next().unwrap_or_default();
        let running: Vec<_> = shares.map(|share| scope.spawn(|| decode(share))).collect();
        let mut batches = decode(own)?;
        for other in running {
            batches.extend(other.join().map_err(|panic| panicked(&*panic))??);
        }
        Ok::<_, parquet::errors::ParquetError>(batches)
    })?;
    let first = batches.first().ok_or_else(|| odd("there are no rows"))?;
    Ok(concat_batches(&first.schema(), &batches)?)
}

fn decoded(
    files: &[File],
    fields: &Fields,
    leaves: &[usize],
    step: usize,
    bytes_max: usize,
    held: &AtomicUsize,
) -> Result<Vec<RecordBatch>> {
    let mut batches = Vec::new();
    for file in files {
        check_pages(file, leaves, bytes_max)?;
        let mut rows = 0;
        for number in 0..file.metadata.num_row_groups() {
            let mut group = Group::new(&file.source, &file.metadata, number, leaves.len())?;
            // A batch has room for as many rows as are asked for, whether they come or not.
            group.batch_rows = step.min(file.rows).max(1);
            for batch in group.reader(fields, leaves, None)? {
                let batch = batch?;
                check_keys(&batch)?;
                rows += batch.num_rows();
                let size = batch.get_array_memory_size();
                if held.fetch_add(size, Ordering::Relaxed).saturating_add(size) > bytes_max {
                    return Err(odd("the rows are too large for one batch"));
                }
                batches.push(batch);
            }
        }
        if rows != file.rows {
            return Err(odd("there are fewer rows than the footer says"));
        }
    }
    Ok(batches)
}

/// Refuse pages that would take much memory although the file is small.
fn check_pages(file: &File, leaves: &[usize], bytes_max: usize) -> Result<()> {
    let mut unpacked = 0_i64;
    for group in file.metadata.row_groups() {
        for leaf in leaves {
            let chunk = group.columns().get(*leaf).ok_or_else(|| odd("no such column"))?;
            let (start, size) = chunk.byte_range();
            let (start, end) = (usize::try_from(start)?, usize::try_from(start + size)?);
            let bytes = file.content.get(start..end).ok_or_else(|| odd("a column is cut short"))?;
            for page in sizes(bytes) {
                unpacked = unpacked.saturating_add(page.1);
            }
        }
    }
    if usize::try_from(unpacked)? > bytes_max {
        return Err(odd("the pages are too large"));
    }
    Ok(())
}
