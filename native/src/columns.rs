//! An open file, its row groups and the pages of their columns.

use std::collections::HashMap;
use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow_array::RecordBatchReader;
use arrow_pyarrow::PyArrowType;
use arrow_schema::{Fields, Schema};
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, RowGroups, RowSelection};
use parquet::arrow::{ProjectionMask, parquet_to_arrow_field_levels};
use parquet::column::page::{Page, PageIterator, PageMetadata, PageReader};
use parquet::errors::Result;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, RowGroupMetaData};
use parquet::file::serialized_reader::SerializedPageReader;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::batches::Batches;
use crate::checks::PageChecks;
use crate::errors::{guarded, odd, to_python};
use crate::footer::{RowGroup, groups_of, parsed};
use crate::lists::BatchValues;
use crate::pages::longest_of;
use crate::source::{ChunkBytes, Source};
use crate::types::{fields_of, has_texts_alone};

/// All columns together are read so many bytes at a time.
const WINDOWS_BYTES: u64 = 8 * 1024 * 1024;

/// An open file.
#[pyclass(frozen)]
pub struct Columns {
    source: Arc<Source>,
    metadata: Arc<ParquetMetaData>,
    fields: Fields,
    opened: Opened,
}

/// Column chunks whose dictionaries were read before their values, by row group and leaf.
type Opened = Mutex<HashMap<(usize, usize), Pages>>;

#[pymethods]
impl Columns {
    /// Open a file by its footer, the Thrift struct alone. The columns in `dictionaries` come as
    /// dictionaries. Raises `ValueError`.
    #[new]
    fn new(
        py: Python<'_>,
        source: Bound<'_, PyAny>,
        footer: PyBackedBytes,
        dictionaries: Vec<String>,
    ) -> PyResult<Self> {
        let read = || {
            let metadata = parsed(&footer)?;
            let fields = fields_of(metadata.file_metadata().schema_descr(), &dictionaries)?;
            Ok((metadata, fields))
        };
        let (metadata, fields) = py.detach(|| guarded(read)).map_err(|e| to_python(&e))?;
        let source = Arc::new(Source::new(source));
        Ok(Self { source, metadata: Arc::new(metadata), fields, opened: Opened::default() })
    }

    /// Return the number of rows.
    #[getter]
    fn num_rows(&self) -> i64 {
        self.metadata.file_metadata().num_rows()
    }

    /// Return each row group as (rows, bytes, chunks).
    fn groups(&self) -> Vec<RowGroup> {
        groups_of(&self.metadata)
    }

    /// Return the Arrow types of all columns.
    fn schema(&self) -> PyArrowType<Schema> {
        PyArrowType(Schema::new(self.fields.clone()))
    }

    /// Return what the writer noted: names and values.
    fn key_values(&self) -> Vec<(String, Option<String>)> {
        let noted = self.metadata.file_metadata().key_value_metadata();
        noted.into_iter().flatten().map(|kv| (kv.key.clone(), kv.value.clone())).collect()
    }

    /// Return whether texts are all that columns of bytes have.
    #[getter]
    fn has_texts_alone(&self) -> bool {
        has_texts_alone(self.metadata.file_metadata().schema_descr())
    }

    /// Return the size of the longest text in the dictionary of a leaf; 0 if it has none. The
    /// dictionary is kept for `rows`. Raises `ValueError`.
    fn longest_text(&self, py: Python<'_>, group: usize, leaf: usize) -> PyResult<usize> {
        let read = || {
            let mut pages = Group::new(&self.source, &self.metadata, group, 1)?.pages(leaf)?;
            let longest = pages.longest_text()?;
            locked(&self.opened).insert((group, leaf), pages);
            Ok(longest)
        };
        py.detach(|| guarded(read)).map_err(|e| to_python(&e))
    }

    /// Return the paths of all leaves.
    fn paths(&self) -> Vec<Vec<String>> {
        let leaves = self.metadata.file_metadata().schema_descr().columns().iter();
        leaves.map(|leaf| leaf.path().parts().to_vec()).collect()
    }

    /// Return a reader of a row group's rows, from `first` on, `rows_max` at a time; of these
    /// leaves. `threads`: the most that share the columns. Raises `ValueError`.
    fn rows(
        &self,
        py: Python<'_>,
        group: usize,
        leaves: Vec<usize>,
        first: usize,
        rows_max: usize,
        threads: usize,
    ) -> PyResult<PyArrowType<Box<dyn RecordBatchReader + Send>>> {
        let opened = || {
            let mut chosen = Group::new(&self.source, &self.metadata, group, leaves.len())?;
            chosen.opened = Mutex::new(take(&mut *locked(&self.opened)));
            chosen.first = first;
            Batches::new(chosen, &self.fields, &leaves, rows_max, threads)
        };
        let batches = py.detach(|| guarded(opened)).map_err(|e| to_python(&e))?;
        Ok(PyArrowType(Box::new(batches)))
    }
}

/// A row group of a file.
pub struct Group<'a> {
    source: &'a Arc<Source>,
    pub metadata: &'a ParquetMetaData,
    pub numbers: &'a RowGroupMetaData,
    number: usize,
    pub rows: usize,
    window_bytes: u64,
    /// The first row that is decoded, and how many at once: the batch size of [`Self::reader`].
    pub first: usize,
    pub batch_rows: usize,
    opened: Opened,
}

impl<'a> Group<'a> {
    pub fn new(
        source: &'a Arc<Source>,
        metadata: &'a ParquetMetaData,
        number: usize,
        columns: usize,
    ) -> Result<Self> {
        let numbers = metadata.row_groups().get(number).ok_or_else(|| odd("no such row group"))?;
        Ok(Self {
            source,
            metadata,
            numbers,
            number,
            rows: usize::try_from(numbers.num_rows())?,
            window_bytes: WINDOWS_BYTES / columns.max(1) as u64,
            first: 0,
            batch_rows: 1,
            opened: Opened::default(),
        })
    }

    fn pages(&self, leaf: usize) -> Result<Pages> {
        let chunk = self.numbers.columns().get(leaf).ok_or_else(|| odd("no such column"))?;
        if chunk.file_path().is_some() {
            return Err(odd("a column is in another file"));
        }
        let source = Arc::clone(self.source);
        let (place, codec) = (chunk.byte_range(), chunk.compression());
        let bytes = ChunkBytes::new(source, place, codec, self.window_bytes)?;
        let rest = SerializedPageReader::new(Arc::new(bytes), chunk, self.rows, None)?;
        Ok(Pages { dictionary: None, checks: self.checks(leaf, chunk)?, rest })
    }

    fn checks(&self, leaf: usize, chunk: &ColumnChunkMetaData) -> Result<PageChecks> {
        let file = self.metadata.file_metadata();
        let root = file.schema_descr().get_column_root(leaf);
        let values = BatchValues::new(self.first, self.batch_rows);
        PageChecks::new(root, chunk, carries_texts(file.created_by()), values)
    }

    /// Return a reader of these leaves, which chooses among all rows, `batch_rows` at a time.
    pub fn reader(
        &self,
        fields: &Fields,
        leaves: &[usize],
        selection: Option<RowSelection>,
    ) -> Result<ParquetRecordBatchReader> {
        let descriptor = self.metadata.file_metadata().schema_descr();
        if leaves.iter().any(|leaf| *leaf >= descriptor.num_columns()) {
            return Err(odd("no such column"));
        }
        let mask = ProjectionMask::leaves(descriptor, leaves.iter().copied());
        let levels = parquet_to_arrow_field_levels(descriptor, mask, Some(fields))?;
        ParquetRecordBatchReader::try_new_with_row_groups(&levels, self, self.batch_rows, selection)
    }
}

impl RowGroups for Group<'_> {
    fn num_rows(&self) -> usize {
        self.rows
    }

    fn column_chunks(&self, leaf: usize) -> Result<Box<dyn PageIterator>> {
        let opened = locked(&self.opened).remove(&(self.number, leaf));
        let mut pages = opened.map_or_else(|| self.pages(leaf), Ok)?;
        pages.checks = self.checks(leaf, self.numbers.column(leaf))?;
        Ok(Box::new(Chunks(Some(Box::new(pages)))))
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        Box::new(std::iter::once(self.numbers))
    }

    fn metadata(&self) -> &ParquetMetaData {
        self.metadata
    }
}

/// The one chunk of a column.
struct Chunks(Option<Box<dyn PageReader>>);

impl Iterator for Chunks {
    type Item = Result<Box<dyn PageReader>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.take().map(Ok)
    }
}

impl PageIterator for Chunks {}

/// The pages of a column chunk. Its dictionary may have been read before its turn.
pub struct Pages {
    dictionary: Option<Page>,
    checks: PageChecks,
    rest: SerializedPageReader<ChunkBytes>,
}

impl Pages {
    fn longest_text(&mut self) -> Result<usize> {
        if self.rest.peek_next_page()?.is_some_and(|page| page.is_dict) {
            self.dictionary = self.rest.get_next_page()?;
        }
        Ok(self.dictionary.as_ref().map_or(0, |page| longest_of(page.buffer())))
    }
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        if let Some(page) = self.dictionary.take() {
            return Ok(Some(page));
        }
        match self.rest.get_next_page()? {
            Some(page) => self.checks.take(page).map(Some),
            None => self.checks.finish().map(|()| None),
        }
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        if self.dictionary.is_some() {
            return Ok(Some(PageMetadata { num_rows: None, num_levels: None, is_dict: true }));
        }
        self.rest.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        if self.dictionary.take().is_some() {
            return Ok(());
        }
        let next = self.rest.peek_next_page()?;
        if !self.checks.may_skip() && next.as_ref().is_some_and(|page| !page.is_dict) {
            return self.get_next_page().map(|_| ());
        }
        next.iter().filter(|page| !page.is_dict).try_for_each(|page| self.checks.skip(page))?;
        self.rest.skip_next_page()
    }

    fn supports_deferred_dictionary(&self) -> bool {
        self.dictionary.is_none() && self.rest.supports_deferred_dictionary()
    }

    fn take_deferred_dictionary(&mut self) -> Result<Option<Page>> {
        self.rest.take_deferred_dictionary()
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.rest.at_record_boundary()
    }
}

fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Return whether a writer's pages of `DELTA_BYTE_ARRAY` go on with the last text of the page
/// before: parquet-mr's do before 1.8 (PARQUET-246), and Spark takes those without a version so.
fn carries_texts(created_by: Option<&str>) -> bool {
    let Some((writer, version)) = created_by.and_then(|by| by.split_once(" version")) else {
        return true;
    };
    let mut numbers = version.trim_start().split(|letter: char| !letter.is_ascii_digit());
    let mut number = || numbers.next().and_then(|digits| digits.parse::<u32>().ok());
    let (major, minor) = (number(), number());
    writer == "parquet-mr" && major.zip(minor).is_none_or(|version| version < (1, 8))
}
