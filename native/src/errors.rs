//! Failures, also those that the libraries did not foresee, as errors.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};

use parquet::errors::{ParquetError, Result};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Run what may panic on damaged bytes. What it held is not used again.
pub fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(panicked(&*panic)))
}

/// A panic's own sentence.
pub fn panicked(panic: &(dyn Any + Send)) -> ParquetError {
    let said = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    ParquetError::General(format!("the decoder gave up: {}", said.unwrap_or("unknown")))
}

pub fn odd(what: &str) -> ParquetError {
    ParquetError::General(what.to_owned())
}

/// A panic is reported as an exception, not on standard error.
pub fn silence_panics() {
    set_hook(Box::new(|_| {}));
}

pub fn to_python(error: &ParquetError) -> PyErr {
    PyValueError::new_err(error.to_string())
}
