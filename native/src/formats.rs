//! The structs of parquet.thrift: which fields they need, and the types of those that are known.

use crate::thrift::Kind::{self, Byte, Flag, I16, I32, I64, List, Struct, Text};
use crate::thrift::Shape;

const fn shape(needed: &'static [i64], fields: &'static [(i64, Kind)]) -> Shape {
    Shape { needed, fields }
}

static EMPTY: Shape = shape(&[], &[]);
static KEY_VALUE: Shape = shape(&[1], &[(1, Text), (2, Text)]);
pub static STATISTICS: Shape = shape(
    &[],
    &[(1, Text), (2, Text), (3, I64), (4, I64), (5, Text), (6, Text), (7, Flag), (8, Flag)],
);
static DECIMAL: Shape = shape(&[1, 2], &[(1, I32), (2, I32)]);
static UNIT: Shape = shape(&[], &[(1, Struct(&EMPTY)), (2, Struct(&EMPTY)), (3, Struct(&EMPTY))]);
static TIME: Shape = shape(&[1, 2], &[(1, Flag), (2, Struct(&UNIT))]);
static INTEGER: Shape = shape(&[1, 2], &[(1, Byte), (2, Flag)]);
static VARIANT: Shape = shape(&[], &[(1, Byte)]);
static GEOMETRY: Shape = shape(&[], &[(1, Text), (2, I32)]);
pub static LOGICAL_TYPE: Shape = shape(
    &[],
    &[
        (1, Struct(&EMPTY)),
        (2, Struct(&EMPTY)),
        (3, Struct(&EMPTY)),
        (4, Struct(&EMPTY)),
        (5, Struct(&DECIMAL)),
        (6, Struct(&EMPTY)),
        (7, Struct(&TIME)),
        (8, Struct(&TIME)),
        (10, Struct(&INTEGER)),
        (11, Struct(&EMPTY)),
        (12, Struct(&EMPTY)),
        (13, Struct(&EMPTY)),
        (14, Struct(&EMPTY)),
        (15, Struct(&EMPTY)),
        (16, Struct(&VARIANT)),
        (17, Struct(&GEOMETRY)),
        (18, Struct(&GEOMETRY)),
    ],
);
pub static SCHEMA_ELEMENT: Shape = shape(
    &[4],
    &[
        (1, I32),
        (2, I32),
        (3, I32),
        (4, Text),
        (5, I32),
        (6, I32),
        (7, I32),
        (8, I32),
        (9, I32),
        (10, Struct(&LOGICAL_TYPE)),
    ],
);
static ENCODING_STATS: Shape = shape(&[1, 2, 3], &[(1, I32), (2, I32), (3, I32)]);
pub static SIZE_STATISTICS: Shape = shape(&[], &[(1, I64), (2, List(&I64)), (3, List(&I64))]);
pub static COLUMN: Shape = shape(
    &[1, 2, 3, 4, 5, 6, 7, 9],
    &[
        (1, I32),
        (2, List(&I32)),
        (3, List(&Text)),
        (4, I32),
        (5, I64),
        (6, I64),
        (7, I64),
        (8, List(&Struct(&KEY_VALUE))),
        (9, I64),
        (10, I64),
        (11, I64),
        (12, Struct(&STATISTICS)),
        (13, List(&Struct(&ENCODING_STATS))),
        (14, I64),
        (15, I32),
        (16, Struct(&SIZE_STATISTICS)),
    ],
);
static CHUNK: Shape = shape(
    &[2],
    &[
        (1, Text),
        (2, I64),
        (3, Struct(&COLUMN)),
        (4, I64),
        (5, I32),
        (6, I64),
        (7, I32),
        (8, Struct(&EMPTY)),
        (9, Text),
    ],
);
static SORTING: Shape = shape(&[1, 2, 3], &[(1, I32), (2, Flag), (3, Flag)]);
pub static ROW_GROUP: Shape = shape(
    &[1, 2, 3],
    &[
        (1, List(&Struct(&CHUNK))),
        (2, I64),
        (3, I64),
        (4, List(&Struct(&SORTING))),
        (5, I64),
        (6, I64),
        (7, I16),
    ],
);
static ORDER: Shape = shape(&[], &[(1, Struct(&EMPTY))]);
pub static FILE: Shape = shape(
    &[1, 2, 3, 4],
    &[
        (1, I32),
        (2, List(&Struct(&SCHEMA_ELEMENT))),
        (3, I64),
        (4, List(&Struct(&ROW_GROUP))),
        (5, List(&Struct(&KEY_VALUE))),
        (6, Text),
        (7, List(&Struct(&ORDER))),
    ],
);

pub static DATA_PAGE: Shape =
    shape(&[1, 2, 3, 4], &[(1, I32), (2, I32), (3, I32), (4, I32), (5, Struct(&STATISTICS))]);
pub static DICTIONARY_PAGE: Shape = shape(&[1, 2], &[(1, I32), (2, I32), (3, Flag)]);
pub static DATA_PAGE_V2: Shape = shape(
    &[1, 2, 3, 4, 5, 6],
    &[
        (1, I32),
        (2, I32),
        (3, I32),
        (4, I32),
        (5, I32),
        (6, I32),
        (7, Flag),
        (8, Struct(&STATISTICS)),
    ],
);
pub static PAGE: Shape = shape(
    &[1, 2, 3],
    &[
        (1, I32),
        (2, I32),
        (3, I32),
        (4, I32),
        (5, Struct(&DATA_PAGE)),
        (6, Struct(&EMPTY)),
        (7, Struct(&DICTIONARY_PAGE)),
        (8, Struct(&DATA_PAGE_V2)),
    ],
);
