/* Structs in Thrift's compact protocol, as Parquet has them in its footers and page headers.
 *
 * Whatever is unusual is `bad`, never guessed at; nothing is read beyond `end`.
 */
#ifndef TAILER_THRIFT_H
#define TAILER_THRIFT_H

#include <stdint.h>

enum { STOP, TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT };
enum { DEPTH_MAX = 32, FOOTER_END = 8 };

/* What is read; `bad` is set at the first byte that is not as expected, and `at` stays in bounds. */
typedef struct {
    const uint8_t *at, *end;
    int bad;
} Input;

static inline uint8_t read_byte(Input *in)
{
    if (in->at >= in->end) {
        in->bad = 1;
        return 0;
    }
    return *in->at++;
}

static inline uint64_t read_varint(Input *in)
{
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        uint8_t byte = read_byte(in);
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) return value;
    }
    in->bad = 1;
    return 0;
}

/* A number that is a size or a place: negative ones are refused. */
static inline int64_t read_size(Input *in)
{
    uint64_t zigzag = read_varint(in);
    if (zigzag & 1) in->bad = 1;
    return (int64_t)(zigzag >> 1);
}

static inline void pass(Input *in, uint64_t size)
{
    if (size > (uint64_t)(in->end - in->at)) {
        in->bad = 1;
        return;
    }
    in->at += size;
}

/* Read the header of a struct's next field; 0 at its end. The numbers of fields must ascend. */
static inline int next_field(Input *in, int *number, int *wire)
{
    uint8_t header = read_byte(in);
    if (in->bad || header == STOP) return 0;
    *wire = header & 0x0F;
    if (!(header >> 4)) { /* the long form, which is only needed for far numbers */
        in->bad = 1;
        return 0;
    }
    *number += header >> 4;
    return 1;
}

static inline uint64_t read_list(Input *in, int *wire)
{
    uint8_t header = read_byte(in);
    uint64_t count = header >> 4;
    *wire = header & 0x0F;
    if (count == 15) count = read_varint(in);
    if (count > (uint64_t)(in->end - in->at)) in->bad = 1; /* each item takes at least a byte */
    return in->bad ? 0 : count;
}

static inline void skip(Input *in, int wire, int depth)
{
    int number = 0, inner;
    if (depth > DEPTH_MAX) in->bad = 1;
    if (in->bad) return;
    switch (wire) {
    case TRUE:
    case FALSE:
        return;
    case BYTE:
        pass(in, 1);
        return;
    case I16:
    case I32:
    case I64:
        read_varint(in);
        return;
    case DOUBLE:
        pass(in, 8);
        return;
    case BINARY:
        pass(in, read_varint(in));
        return;
    case LIST:
    case SET: {
        uint64_t count = read_list(in, &inner);
        if (inner == TRUE || inner == FALSE) inner = BYTE; /* in a list a flag takes a byte */
        for (; count && !in->bad; count--) skip(in, inner, depth + 1);
        return;
    }
    case STRUCT:
        while (next_field(in, &number, &inner)) skip(in, inner, depth + 1);
        return;
    default:
        in->bad = 1;
    }
}

#endif
