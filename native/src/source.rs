//! The bytes of a column chunk: of a file that Python has open, or in memory.

use std::fs::File;
use std::mem::take;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::buf::Reader;
use bytes::{Buf, Bytes, BytesMut};
use parquet::basic::Compression;
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::errors::odd;
use crate::pages::header;
use crate::thrift::varint;

/// A page's header is shorter, but for statistics that are not read.
const HEADER_BYTES: u64 = 16 * 1024;
/// A page that is unpacked to more bytes, and to so many times its size or to so many bytes, is
/// refused here.
const PAGE_BYTES_MAX: i64 = 64 * 1024 * 1024;
const PAGE_TIMES: i64 = 100;
const LARGEST_PAGE_BYTES: i64 = 256 * 1024 * 1024;

/// A file: by its method `read_at` (`pyarrow.NativeFile`), which is called with the interpreter's
/// lock; without it, if the file is one of the system's; or its bytes.
pub enum Source {
    Python(Py<PyAny>),
    System(File),
    Memory(Bytes),
}

impl Source {
    /// Take an open file of Python's.
    pub fn new(file: Bound<'_, PyAny>) -> Self {
        let number = file.call_method0("fileno").and_then(|number| number.extract::<i32>());
        let opened = number.ok().and_then(|number| File::open(format!("/dev/fd/{number}")).ok());
        opened.map_or_else(|| Self::Python(file.unbind()), Self::System)
    }

    /// Return how much is read at once where columns have `share` bytes each.
    fn window_bytes(&self, share: u64) -> u64 {
        match self {
            Self::Python(_) => share.clamp(256 * 1024, 512 * 1024),
            _ => share.clamp(64 * 1024, 128 * 1024), // which stay in the processor's cache
        }
    }

    /// Return the bytes of a range that begins as `last` goes on behind `passed` bytes: no byte of
    /// a file is read twice, for a file on a server keeps only what was not read.
    fn read_on(&self, last: Bytes, passed: usize, start: u64, size: u64) -> Result<Bytes> {
        match self {
            Self::Python(file) => {
                let known = last.slice(passed..);
                let rest = start + known.len() as u64;
                let more = read_of_python(file, rest, size - known.len() as u64)?;
                Ok(if known.is_empty() { more } else { [known, more].concat().into() })
            }
            Self::System(file) => {
                let (known, size) = (last.len() - passed, usize::try_from(size)?);
                // Memory that no page lies in any more is used again: new memory would be zeroed.
                let mut bytes = last.try_into_mut().unwrap_or_else(|last| {
                    let mut bytes = BytesMut::with_capacity(size.max(last.len()));
                    bytes.extend_from_slice(&last);
                    bytes
                });
                bytes.copy_within(passed.., 0);
                bytes.resize(size, 0);
                file.read_exact_at(&mut bytes[known..], start + known as u64)?;
                Ok(bytes.freeze())
            }
            Self::Memory(bytes) => {
                let (start, end) = (usize::try_from(start)?, usize::try_from(start + size)?);
                if end > bytes.len() {
                    return Err(odd("the file is too short"));
                }
                Ok(bytes.slice(start..end))
            }
        }
    }
}

fn read_of_python(file: &Py<PyAny>, start: u64, size: u64) -> Result<Bytes> {
    let bytes = Python::attach(|py| {
        let bytes = file.bind(py).call_method1("read_at", (size, start))?;
        Ok(Bytes::from_owner(bytes.extract::<PyBackedBytes>()?))
    })
    .map_err(|error: PyErr| ParquetError::External(Box::new(error)))?;
    if bytes.len() as u64 == size { Ok(bytes) } else { Err(odd("the file is too short")) }
}

/// A column chunk, which is read some bytes at a time.
pub struct ChunkBytes {
    source: Arc<Source>,
    end: u64,
    codec: Compression,
    window_bytes: u64,
    /// What was read last, and where it begins.
    window: Mutex<(u64, Bytes)>,
    /// Where the page begins whose header was read last.
    page_start: AtomicU64,
}

impl ChunkBytes {
    pub fn new(
        source: Arc<Source>,
        (start, size): (u64, u64),
        codec: Compression,
        share: u64,
    ) -> Result<Self> {
        let end = start.checked_add(size).ok_or_else(|| odd("a chunk has no end"))?;
        let window = Mutex::new((start, Bytes::new()));
        let window_bytes = source.window_bytes(share);
        Ok(Self { source, end, codec, window_bytes, window, page_start: AtomicU64::new(u64::MAX) })
    }

    /// Return what is in memory from a position on: so many bytes, or more.
    fn at(&self, start: u64, least: u64) -> Result<Bytes> {
        if least > self.end.saturating_sub(start) {
            return Err(odd("a page is longer than its column"));
        }
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let (begin, bytes) = &*window;
        let passed = match start.checked_sub(*begin) {
            Some(passed) => usize::try_from(passed)?.min(bytes.len()),
            None => bytes.len(),
        };
        if (bytes.len() - passed) as u64 >= least {
            return Ok(bytes.slice(passed..));
        }
        // Behind a large page the next one's header is read along.
        let size = self.window_bytes.max(least + HEADER_BYTES).min(self.end - start);
        let before = take(&mut window.1);
        *window = (start, self.source.read_on(before, passed, start, size)?);
        Ok(window.1.clone())
    }
}

impl Length for ChunkBytes {
    fn len(&self) -> u64 {
        self.end
    }
}

impl ChunkReader for ChunkBytes {
    type T = Reader<Bytes>;

    /// Return a reader of a page's header, or of the page behind the last header.
    fn get_read(&self, start: u64) -> Result<Self::T> {
        let bytes = self.at(start, HEADER_BYTES.min(self.end.saturating_sub(start)))?;
        if start == self.page_start.load(Ordering::Relaxed) {
            return Ok(bytes.reader());
        }
        let header = header(&bytes).ok_or_else(|| odd("the header of a page is damaged"))?;
        if header.unpacked > LARGEST_PAGE_BYTES
            || (header.unpacked > PAGE_BYTES_MAX && header.unpacked / PAGE_TIMES > header.stored)
        {
            return Err(odd("a page would take too much memory"));
        }
        let page_start = start + header.size as u64;
        if self.codec == Compression::SNAPPY && header.is_packed {
            let rest = u64::try_from(header.stored - header.levels)?;
            let start = page_start + u64::try_from(header.levels)?;
            let mut packed = &*self.at(start, rest.min(5))?;
            // The crate leaves zeros where there are fewer bytes than the header says.
            let size = header.unpacked - header.levels;
            if size > 0 && varint(&mut packed).is_none_or(|found| i64::try_from(found) != Ok(size))
            {
                return Err(odd("a page is unpacked to another size than its header says"));
            }
        }
        // A page without bytes begins where the next header does.
        let page_start = if header.stored > 0 { page_start } else { u64::MAX };
        self.page_start.store(page_start, Ordering::Relaxed);
        Ok(bytes.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        Ok(self.at(start, length as u64)?.slice(..length))
    }
}
