//! Structs in Thrift's compact protocol, passed over field by field.
//!
//! The crate `parquet` reads a field by its number, whatever type it is said to have. Readers that
//! Thrift has made pass over one of another type, and miss it. So there is none behind this.

use std::ptr;

const DEPTH_MAX: u32 = 32;

/// The types of the compact protocol.
pub enum Kind {
    Flag,
    Byte,
    I16,
    I32,
    I64,
    Text,
    List(&'static Kind),
    Struct(&'static Shape),
}

/// The fields of a struct that are needed, and the types of those that are known.
pub struct Shape {
    pub needed: &'static [i64],
    pub fields: &'static [(i64, Kind)],
}

impl Shape {
    /// Return whether this is that one.
    pub fn is(&self, other: &Shape) -> bool {
        ptr::eq(self, other)
    }
}

/// What a walk meets.
pub enum Met {
    /// A number, or a flag.
    Number(i64),
    /// A list of so many items begins.
    Items(u64),
    /// A struct begins.
    Struct,
    /// A text of so many bytes.
    Text(u64),
    /// The struct ends.
    End,
}

impl Kind {
    fn wire(&self) -> u8 {
        match self {
            Self::Flag => 1,
            Self::Byte => 3,
            Self::I16 => 4,
            Self::I32 => 5,
            Self::I64 => 6,
            Self::Text => 8,
            Self::List(_) => 9,
            Self::Struct(_) => 12,
        }
    }
}

/// A walk over structs. `see` is called with the struct, the field and what is there.
pub struct Reader<'a, S: FnMut(&'static Shape, i64, Met) -> Option<()>> {
    pub rest: &'a [u8],
    pub see: S,
}

impl<S: FnMut(&'static Shape, i64, Met) -> Option<()>> Reader<'_, S> {
    /// Walk over a struct. None if it is not whole, or a field has another type than it should.
    pub fn walk(&mut self, shape: &'static Shape, depth: u32) -> Option<()> {
        let mut seen = 0_u64;
        let mut number = 0_i64;
        loop {
            let byte = self.byte()?;
            if byte == 0 {
                break;
            }
            number = match i64::from(byte >> 4) {
                0 => zigzag(&mut self.rest)?,
                more => number.checked_add(more)?,
            };
            let wire = byte & 0x0F;
            let known = shape.fields.iter().find(|(field, _)| *field == number);
            let Some((_, kind)) = known else {
                self.skip(wire, depth)?;
                continue;
            };
            let is_flag = matches!(kind, Kind::Flag) && wire == 2;
            if seen >> number & 1 == 1 || (wire != kind.wire() && !is_flag) {
                return None;
            }
            seen |= 1 << number;
            match kind {
                Kind::Flag => (self.see)(shape, number, Met::Number(i64::from(wire == 1)))?,
                Kind::List(item) => self.list(shape, number, item, depth)?,
                kind => self.item(shape, number, kind, depth)?,
            }
        }
        let is_whole = shape.needed.iter().all(|field| seen >> field & 1 == 1);
        is_whole.then(|| (self.see)(shape, 0, Met::End))?
    }

    fn item(
        &mut self,
        shape: &'static Shape,
        field: i64,
        kind: &'static Kind,
        depth: u32,
    ) -> Option<()> {
        match kind {
            Kind::Struct(inner) if depth < DEPTH_MAX => {
                (self.see)(shape, field, Met::Struct)?;
                self.walk(inner, depth + 1)
            }
            Kind::I16 | Kind::I32 | Kind::I64 => {
                let number = zigzag(&mut self.rest)?;
                let is_long = matches!(kind, Kind::I64);
                (is_long || i32::try_from(number).is_ok()).then_some(())?;
                (self.see)(shape, field, Met::Number(number))
            }
            Kind::Text => {
                let size = varint(&mut self.rest)?;
                self.pass(size)?;
                (self.see)(shape, field, Met::Text(size))
            }
            kind => self.skip(kind.wire(), depth),
        }
    }

    fn list(
        &mut self,
        shape: &'static Shape,
        field: i64,
        kind: &'static Kind,
        depth: u32,
    ) -> Option<()> {
        let (size, wire) = self.list_head()?;
        (self.see)(shape, field, Met::Items(size))?;
        (size == 0 || wire == kind.wire()).then_some(())?;
        (0..size).try_for_each(|_| self.item(shape, field, kind, depth))
    }

    fn list_head(&mut self) -> Option<(u64, u8)> {
        let head = self.byte()?;
        let size = if head >> 4 == 15 { varint(&mut self.rest)? } else { u64::from(head >> 4) };
        // Each item takes at least a byte.
        (size <= self.rest.len() as u64).then_some((size, head & 0x0F))
    }

    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*byte)
    }

    fn pass(&mut self, size: u64) -> Option<()> {
        self.rest = self.rest.get(usize::try_from(size).ok()?..)?;
        Some(())
    }

    /// Pass over what has no shape here.
    fn skip(&mut self, wire: u8, depth: u32) -> Option<()> {
        if depth > DEPTH_MAX {
            return None;
        }
        match wire {
            1 | 2 => Some(()),
            3 => self.pass(1),
            4..=6 => varint(&mut self.rest).map(|_| ()),
            7 => self.pass(8),
            8 => varint(&mut self.rest).and_then(|size| self.pass(size)),
            9 | 10 => {
                let (size, wire) = self.list_head()?;
                // In a list a flag takes a byte.
                let wire = if matches!(wire, 1 | 2) { 3 } else { wire };
                (0..size).try_for_each(|_| self.skip(wire, depth + 1))
            }
            12 => loop {
                let byte = self.byte()?;
                if byte == 0 {
                    return Some(());
                }
                if byte >> 4 == 0 {
                    varint(&mut self.rest)?;
                }
                self.skip(byte & 0x0F, depth + 1)?;
            },
            _ => None,
        }
    }
}

/// Read a number of at most 64 bits, seven of them a byte.
pub fn varint(data: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = data.split_first()?;
        *data = rest;
        value |= u64::from(byte & 0x7F) << shift;
        if *byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// Read a number whose sign is its lowest bit.
pub fn zigzag(data: &mut &[u8]) -> Option<i64> {
    let value = varint(data)?;
    Some((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
}
