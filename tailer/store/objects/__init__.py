"""Tables on Azure and Google storage, by obstore (the Rust crate object_store)."""
