//! Decodes Parquet files for delta-tailer: the module `tailer.native._parquet`.
//!
//! What comes from a file is parsed by the crates `parquet` and `arrow` alone. There is no `unsafe`
//! here, a panic becomes an exception, and nothing is decoded under the interpreter's lock. pyarrow
//! stays the judge: what is refused here, it decodes or refuses by its own words.
#![deny(unsafe_code)]
#![warn(clippy::all, clippy::pedantic)]
#![allow(clippy::needless_pass_by_value)] // arguments from Python come by value

mod batches;
mod bounds;
mod checks;
mod columns;
mod deltas;
mod errors;
mod footer;
mod formats;
mod lists;
mod pages;
mod runs;
mod small_files;
mod source;
mod thrift;
mod types;

use pyo3::prelude::*;

/// The version of this module's functions. The Python that calls them names the one that it needs.
const INTERFACE: u32 = 5;

#[pymodule(gil_used = false)]
fn _parquet(module: &Bound<'_, PyModule>) -> PyResult<()> {
    errors::silence_panics();
    module.add("INTERFACE", INTERFACE)?;
    module.add_class::<columns::Columns>()?;
    module.add_function(wrap_pyfunction!(bounds::bounds, module)?)?;
    module.add_function(wrap_pyfunction!(pages::page_sizes, module)?)?;
    module.add_function(wrap_pyfunction!(pages::longest, module)?)?;
    module.add_function(wrap_pyfunction!(small_files::small_files, module)?)
}
