//! Structs in Thrift's compact protocol, passed over field by field, where the crate `parquet` gives
//! no access to what it reads.

/// The wire types of Thrift's compact protocol.
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const I16: u8 = 4;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
pub const LIST: u8 = 9;
const SET: u8 = 10;
pub const STRUCT: u8 = 12;
const DEPTH_MAX: u32 = 32;

/// Return whether a wire type is that of a signed number.
pub fn is_number(wire: u8) -> bool {
    (I16..=I64).contains(&wire)
}

/// A walk over structs.
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Self { rest: data }
    }

    /// Return how many bytes are left.
    pub fn left(&self) -> usize {
        self.rest.len()
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

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    pub fn signed(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// Call `take` with each field of a struct, its number and wire type.
    pub fn fields(
        &mut self,
        depth: u32,
        mut take: impl FnMut(&mut Self, i64, u8) -> Option<()>,
    ) -> Option<()> {
        if depth > DEPTH_MAX {
            return None;
        }
        let mut number = 0_i64;
        loop {
            let byte = self.byte()?;
            if byte == 0 {
                return Some(());
            }
            if byte >> 4 == 0 {
                let zigzag = self.varint()?;
                number = (zigzag >> 1).cast_signed() ^ -(zigzag & 1).cast_signed();
            } else {
                number = number.checked_add(i64::from(byte >> 4))?;
            }
            take(self, number, byte & 0x0F)?;
        }
    }

    pub fn skip(&mut self, wire: u8, depth: u32) -> Option<()> {
        match wire {
            TRUE | FALSE => Some(()),
            BYTE => self.pass(1),
            I16..=I64 => self.varint().map(|_| ()),
            DOUBLE => self.pass(8),
            BINARY => {
                let size = self.varint()?;
                self.pass(size)
            }
            LIST | SET => self.items(depth + 1, |reader, _, wire| reader.skip(wire, depth + 1)),
            STRUCT => self.fields(depth + 1, |reader, _, wire| reader.skip(wire, depth + 1)),
            _ => None,
        }
    }

    /// Call `take` with each item of a list, its number and wire type.
    pub fn items(
        &mut self,
        depth: u32,
        mut take: impl FnMut(&mut Self, u64, u8) -> Option<()>,
    ) -> Option<()> {
        if depth > DEPTH_MAX {
            return None;
        }
        let head = self.byte()?;
        let size = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
        if size > self.rest.len() as u64 {
            return None; // each item takes at least a byte
        }
        // In a list a flag takes a byte.
        let wire = if matches!(head & 0x0F, TRUE | FALSE) { BYTE } else { head & 0x0F };
        (0..size).try_for_each(|number| take(self, number, wire))
    }
}
