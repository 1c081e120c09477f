/* Snappy's format, unpacked ("format_description.txt" of google/snappy).
 *
 * Columns of tables are mostly short runs of bytes, some of them new and some of them copies: what
 * costs time is to find out how long the next one is. So as many bytes as it may have are moved at
 * once where there is room, and the next one is written over those that were too many.
 */
#ifndef TAILER_SNAPPY_H
#define TAILER_SNAPPY_H

#include <stdint.h>
#include <string.h>

/* `WIDE`: the most bytes of a copy, or of new bytes whose number is in their tag; they are moved in
 * steps of `STEP`. `PREAMBLE`: the most bytes of the size before all tags. `MARGIN`: what is read
 * behind a tag, its own bytes among it. */
enum { SNAPPY_WIDE = 64, SNAPPY_STEP = 16, SNAPPY_PREAMBLE = 5, SNAPPY_MARGIN = SNAPPY_WIDE + 8 };

/* What is unpacked: between `in` and `end`, to `out`, which has bytes from `start` on. */
typedef struct {
    const uint8_t *in, *end;
    uint8_t *out, *start, *out_end;
} Snappy;

/* A run of bytes: `offset` is how far behind it lies, 0 if it is new and follows the tag. */
typedef struct {
    uint64_t size, offset;
    int bad;
} SnappyRun;

/* Move up to 64 bytes, in steps, each of which may read what the one before has written. */
static inline void snappy_move(uint8_t *to, const uint8_t *from, uint64_t size)
{
    memcpy(to, from, SNAPPY_STEP);
    if (size <= SNAPPY_STEP) return;
    memcpy(to + 16, from + 16, SNAPPY_STEP);
    memcpy(to + 32, from + 32, SNAPPY_STEP);
    memcpy(to + 48, from + 48, SNAPPY_STEP);
}

/* Read a tag and the `extra` bytes that belong to it, of which `word` has at least four. */
static inline SnappyRun snappy_run(uint8_t tag, uint32_t word, int *extra)
{
    SnappyRun run = {(uint64_t)(tag >> 2) + 1, 0, 0};
    switch (tag & 3) {
    case 0:
        *extra = run.size > 60 ? (int)run.size - 60 : 0;
        if (*extra) run.size = (uint64_t)(*extra < 4 ? word & ((1u << 8 * *extra) - 1) : word) + 1;
        return run;
    case 1:
        *extra = 1;
        run.size = (uint64_t)(tag >> 2 & 7) + 4;
        run.offset = (uint64_t)(tag >> 5) << 8 | (word & 0xFF);
        break;
    case 2:
        *extra = 2;
        run.offset = word & 0xFFFF;
        break;
    default:
        *extra = 4;
        run.offset = word;
    }
    run.bad = !run.offset;
    return run;
}

/* Unpack runs as long as they may be moved without looking how much room there is. */
static inline int snappy_fast(Snappy *at)
{
    while (at->end - at->in > SNAPPY_MARGIN && at->out_end - at->out >= SNAPPY_WIDE) {
        int extra;
        uint32_t word;
        memcpy(&word, at->in + 1, 4);
        SnappyRun run = snappy_run(*at->in, word, &extra);
        at->in += 1 + extra;
        if (!run.offset) {
            if (run.bad) return 0;
            if (run.size > SNAPPY_WIDE) {
                if (run.size > (uint64_t)(at->end - at->in)) return 0;
                if (run.size > (uint64_t)(at->out_end - at->out)) return 0;
                memcpy(at->out, at->in, (size_t)run.size);
            } else {
                snappy_move(at->out, at->in, run.size);
            }
            at->in += run.size;
        } else {
            if (run.offset > (uint64_t)(at->out - at->start)) return 0;
            const uint8_t *from = at->out - run.offset;
            if (run.offset >= SNAPPY_STEP) {
                snappy_move(at->out, from, run.size);
            } else { /* a pattern, which repeats itself */
                for (uint64_t i = 0; i < run.size; i++) at->out[i] = from[i];
            }
        }
        at->out += run.size;
    }
    return 1;
}

/* Unpack the other runs, looking at each byte's place. */
static inline int snappy_rest(Snappy *at)
{
    while (at->in < at->end) {
        uint8_t tag = *at->in++;
        uint8_t bytes[4] = {0};
        uint64_t rest = (uint64_t)(at->end - at->in);
        uint32_t word;
        int extra;
        memcpy(bytes, at->in, (size_t)(rest < 4 ? rest : 4));
        memcpy(&word, bytes, 4);
        SnappyRun run = snappy_run(tag, word, &extra);
        if (run.bad || (uint64_t)extra > rest) return 0;
        at->in += extra;
        if (run.size > (uint64_t)(at->out_end - at->out)) return 0;
        if (!run.offset) {
            if (run.size > (uint64_t)(at->end - at->in)) return 0;
            memcpy(at->out, at->in, (size_t)run.size);
            at->in += run.size;
        } else {
            if (run.offset > (uint64_t)(at->out - at->start)) return 0;
            for (uint64_t i = 0; i < run.size; i++) at->out[i] = at->out[i - run.offset];
        }
        at->out += run.size;
    }
    return 1;
}

/* Unpack all of `in` to `out`, which has room for `size` bytes; 0 if it has another size, or is
 * damaged. */
static inline int snappy_unpack(const uint8_t *in, int64_t stored, uint8_t *out, int64_t size)
{
    uint64_t claimed = 0;
    int at = 0, more = 1;
    for (; more && at < stored && at < SNAPPY_PREAMBLE; at++) {
        claimed |= (uint64_t)(in[at] & 0x7F) << 7 * at;
        more = in[at] & 0x80;
    }
    if (more || claimed != (uint64_t)size) return 0;
    Snappy all = {in + at, in + stored, out, out, out + size};
    return snappy_fast(&all) && snappy_rest(&all) && all.out == all.out_end;
}

#endif
