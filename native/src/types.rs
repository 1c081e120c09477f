//! The Arrow types of a file's columns, as they follow from Parquet's types alone: those that a
//! writer noted besides are passed over, as every reader outside Arrow does.

use std::sync::Arc;

use arrow_schema::{DataType, Field, FieldRef, Fields, TimeUnit};
use parquet::arrow::parquet_to_arrow_schema;
use parquet::basic::{ConvertedType, Type};
use parquet::errors::Result;
use parquet::schema::types::SchemaDescriptor;

use crate::errors::odd;

/// Return the columns with pyarrow's types; texts of `dictionaries` come as dictionaries.
pub fn fields_of(descriptor: &SchemaDescriptor, dictionaries: &[String]) -> Result<Fields> {
    let schema = parquet_to_arrow_schema(descriptor, None)?;
    let mut leaf = 0;
    let mut fields = Vec::new();
    for field in schema.fields() {
        let field = with_micros(field, descriptor, &mut leaf)?;
        let is_dictionary = dictionaries.contains(field.name());
        fields.push(if is_dictionary { dictionary(&field) } else { field });
    }
    Ok(fields.into())
}

/// Return whether texts are all that columns of bytes have, by what the file says of them.
pub fn has_texts_alone(descriptor: &SchemaDescriptor) -> bool {
    descriptor.columns().iter().all(|leaf| {
        leaf.physical_type() != Type::BYTE_ARRAY || leaf.converted_type() == ConvertedType::UTF8
    })
}

fn dictionary(field: &Field) -> FieldRef {
    let values = Box::new(field.data_type().clone());
    let kind = DataType::Dictionary(Box::new(DataType::Int32), values);
    Arc::new(field.clone().with_data_type(kind))
}

/// Return a column with microseconds where there is INT96; `leaf` is the number of its first leaf.
fn with_micros(field: &FieldRef, leaves: &SchemaDescriptor, leaf: &mut usize) -> Result<FieldRef> {
    let kind = match field.data_type() {
        DataType::Struct(fields) => {
            let fields = fields.iter().map(|field| with_micros(field, leaves, leaf));
            DataType::Struct(fields.collect::<Result<_>>()?)
        }
        DataType::List(item) => DataType::List(with_micros(item, leaves, leaf)?),
        DataType::Map(entries, sorted) => {
            DataType::Map(with_micros(entries, leaves, leaf)?, *sorted)
        }
        kind => {
            *leaf += 1;
            if *leaf > leaves.num_columns() {
                return Err(odd("a column has more leaves than the file"));
            }
            match (kind, leaves.column(*leaf - 1).physical_type()) {
                (DataType::Timestamp(_, zone), Type::INT96) => {
                    DataType::Timestamp(TimeUnit::Microsecond, zone.clone())
                }
                (DataType::Interval(_), _) => return Err(odd("a column has intervals")),
                (kind, _) => kind.clone(),
            }
        }
    };
    Ok(Arc::new(Field::clone(field).with_data_type(kind)))
}
