"""Tables on S3, Azure and Google storage, by obstore (the Rust crate object_store)."""
