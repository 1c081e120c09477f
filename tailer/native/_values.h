/* The values of a data page, decoded straight into the buffers of Arrow arrays.
 *
 * Known are the encodings that nearly all writers use for flat columns: plain values, and numbers of
 * values in a dictionary, which are, like the levels that tell nulls, a hybrid of runs and packed
 * numbers ("Parquet format: Encodings").
 */
#ifndef TAILER_VALUES_H
#define TAILER_VALUES_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "_thrift.h"

/* How values become Arrow's: copied, widened to decimals of 16 bytes, or texts; or numbers of texts in
 * the dictionary, which are not looked up. */
enum { COPY4, COPY8, DECIMAL4, DECIMAL8, DECIMAL_FIXED, TEXT, CODE };
/* Rows decoded in one go; and the bytes that short texts may be copied too far. */
enum { BLOCK = 1024, SLACK = 16 };
enum { ODD = -1, NO_ROOM = 0 };

typedef struct {
    const uint8_t *bytes;
    int64_t size;
} Bytes;

/* Where the decoding of a hybrid of runs is: `left` numbers of a run, which are all `value`, or packed
 * from `bit` on if that is not negative. The next run begins at `at`. */
typedef struct {
    int64_t at, left, value, bit;
} Runs;

/* A page of a column, how far it is decoded, and the array that its values go to. */
typedef struct {
    int form, is_nullable, is_coded;
    int64_t length;        /* bytes of a plain value */
    int64_t rows;          /* not taken yet */
    Bytes levels, values;  /* as they are encoded */
    int64_t value_at;      /* where the next plain value begins */
    int64_t width;         /* of the numbers of a dictionary's values, in bits */
    Runs levels_at, places_at;
    Bytes dictionary;      /* its values as Arrow has them, */
    const int32_t *ends;   /* and, for texts, where each begins, and the last one ends */
    int64_t entries;
    uint8_t *validity, *out; /* of the array */
    int32_t *offsets;
    int64_t room, used; /* bytes of texts */
    int64_t nulls;      /* of the array */
} Page;

static int64_t least(int64_t one, int64_t other) { return one < other ? one : other; }

/* Whether plain values of a form may have this length; a text has any. */
static int is_form(int form, long long length)
{
    switch (form) {
    case COPY4:
    case DECIMAL4:
        return length == 4;
    case COPY8:
    case DECIMAL8:
        return length == 8;
    case DECIMAL_FIXED:
        return length >= 1 && length <= 16;
    default:
        return form == TEXT || form == CODE;
    }
}

/* The bytes of a value in an array. */
static int size_of(int form) { return form == COPY4 || form == CODE ? 4 : form == COPY8 ? 8 : 16; }

/* --- runs ("RLE/Bit-Packing Hybrid") --- */

static int next_run(Runs *runs, Bytes in, int width)
{
    if (runs->at < 0 || runs->at > in.size) return 0;
    Input header = {in.bytes + runs->at, in.bytes + in.size, 0};
    uint64_t found = read_varint(&header), count = found >> 1;
    if (header.bad || !count || count > INT32_MAX / 8) return 0;
    int64_t at = header.at - in.bytes, bytes;
    if (found & 1) { /* groups of eight packed numbers */
        bytes = (int64_t)count * width;
        runs->left = (int64_t)count * 8;
        runs->bit = at * 8;
    } else {
        bytes = (width + 7) / 8;
        runs->left = (int64_t)count;
        runs->bit = -1;
    }
    if (bytes > in.size - at) return 0;
    if (runs->bit < 0) {
        uint32_t value = 0;
        memcpy(&value, in.bytes + at, (size_t)bytes);
        if (width < 32 && value >> width) return 0;
        runs->value = value;
    }
    runs->at = at + bytes;
    return 1;
}

static void unpack(Bytes in, int64_t bit, int width, uint32_t *out, int64_t count)
{
    uint64_t mask = ((uint64_t)1 << width) - 1;
    for (int64_t i = 0; i < count; i++, bit += width) {
        int64_t at = bit >> 3, rest = in.size - at;
        uint64_t word = 0;
        if (rest >= 8) {
            memcpy(&word, in.bytes + at, 8);
        } else if (rest > 0) {
            memcpy(&word, in.bytes + at, (size_t)rest);
        }
        out[i] = (uint32_t)(word >> (bit & 7) & mask);
    }
}

/* Decode numbers of `width` bits, up to 32; 0 if there are fewer. */
static int take_numbers(Runs *runs, Bytes in, int width, uint32_t *out, int64_t count)
{
    while (count) {
        if (!runs->left && !next_run(runs, in, width)) return 0;
        int64_t some = least(count, runs->left);
        if (runs->bit < 0) {
            for (int64_t i = 0; i < some; i++) out[i] = (uint32_t)runs->value;
        } else {
            unpack(in, runs->bit, width, out, some);
            runs->bit += some * width;
        }
        runs->left -= some;
        out += some;
        count -= some;
    }
    return 1;
}

/* --- levels --- */

/* Take the levels of a block's rows into `present`; returns how many are not null. */
static int64_t take_levels(Page *page, int64_t row, int64_t count, uint32_t *present)
{
    Runs *levels = &page->levels_at;
    if (!page->is_nullable) return count;
    if (levels->left >= count && levels->bit < 0 && levels->value) {
        levels->left -= count;
        return count;
    }
    if (!take_numbers(levels, page->levels, 1, present, count)) return ODD;
    int64_t found = 0;
    for (int64_t i = 0; i < count; i++) found += present[i];
    if (found == count) return count;
    for (int64_t i = row; i < row + count; i++) { /* what a call without room left there goes, too */
        uint8_t flag = (uint8_t)(1 << (i & 7));
        page->validity[i >> 3] = present[i - row] ? page->validity[i >> 3] | flag
                                                  : page->validity[i >> 3] & (uint8_t)~flag;
    }
    page->nulls += count - found;
    return found;
}

/* Numbers of the dictionary's values, each of which is there. */
static int take_places(Page *page, uint32_t *places, int64_t count)
{
    if (!take_numbers(&page->places_at, page->values, (int)page->width, places, count)) return 0;
    uint32_t largest = 0;
    for (int64_t i = 0; i < count; i++) largest = places[i] > largest ? places[i] : largest;
    return !count || largest < (uint64_t)page->entries;
}

/* --- values of one size --- */

/* A big-endian number of 1 to 16 bytes as one of 16, little-endian. */
static void widen(const uint8_t *from, int64_t length, uint8_t *to)
{
    uint64_t high = from[0] & 0x80 ? UINT64_MAX : 0, low = high;
    for (int64_t i = 0; i < length; i++) {
        high = high << 8 | low >> 56;
        low = low << 8 | from[i];
    }
    memcpy(to, &low, 8);
    memcpy(to + 8, &high, 8);
}

static void widen_fixed(const uint8_t *from, int64_t length, uint8_t *to, int64_t count)
{
    int64_t head = length - 8;
    if (head < 1) {
        for (int64_t i = 0; i < count; i++) widen(from + i * length, length, to + i * 16);
        return;
    }
    for (int64_t i = 0; i < count; i++, from += length, to += 16) {
        uint64_t high = from[0] & 0x80 ? UINT64_MAX : 0, low;
        for (int64_t j = 0; j < head; j++) high = high << 8 | from[j];
        memcpy(&low, from + head, 8);
        low = __builtin_bswap64(low);
        memcpy(to, &low, 8);
        memcpy(to + 8, &high, 8);
    }
}

static void convert(int form, int64_t length, const uint8_t *from, uint8_t *to, int64_t count)
{
    int32_t small;
    int64_t large, sign;
    switch (form) {
    case COPY4:
    case COPY8:
        memcpy(to, from, (size_t)(count * length));
        return;
    case DECIMAL4:
        for (int64_t i = 0; i < count; i++) {
            memcpy(&small, from + i * 4, 4);
            large = small;
            sign = large >> 63;
            memcpy(to + i * 16, &large, 8);
            memcpy(to + i * 16 + 8, &sign, 8);
        }
        return;
    case DECIMAL8:
        for (int64_t i = 0; i < count; i++) {
            memcpy(&large, from + i * 8, 8);
            sign = large >> 63;
            memcpy(to + i * 16, &large, 8);
            memcpy(to + i * 16 + 8, &sign, 8);
        }
        return;
    default:
        widen_fixed(from, length, to, count);
    }
}

static void gather(int size, const uint8_t *from, const uint32_t *places, uint8_t *to, int64_t count)
{
    switch (size) {
    case 4:
        for (int64_t i = 0; i < count; i++) memcpy(to + i * 4, from + places[i] * (int64_t)4, 4);
        return;
    case 8:
        for (int64_t i = 0; i < count; i++) memcpy(to + i * 8, from + places[i] * (int64_t)8, 8);
        return;
    default:
        for (int64_t i = 0; i < count; i++) memcpy(to + i * 16, from + places[i] * (int64_t)16, 16);
    }
}

/* Move values that lie side by side to their rows; null ones are zero. */
static void spread(uint8_t *out, int size, const uint32_t *present, int64_t count, int64_t found)
{
    for (int64_t i = count - 1; i >= 0; i--) {
        if (!present[i]) {
            memset(out + i * size, 0, (size_t)size);
        } else if (--found != i) {
            memcpy(out + i * size, out + found * size, (size_t)size);
        }
    }
}

static int64_t take_fixed(Page *page, int64_t row, int64_t count)
{
    uint32_t present[BLOCK], places[BLOCK];
    int size = size_of(page->form);
    uint8_t *out = page->out + row * size;
    int64_t found = take_levels(page, row, count, present);
    if (found < 0) return ODD;
    if (page->is_coded) {
        if (!take_places(page, places, found)) return ODD;
        if (page->form == CODE) {
            memcpy(out, places, (size_t)found * sizeof(*places));
        } else if (found) {
            gather(size, page->dictionary.bytes, places, out, found);
        }
    } else if (page->form == CODE) {
        return ODD;
    } else {
        if (found > (page->values.size - page->value_at) / page->length) return ODD;
        if (found) convert(page->form, page->length, page->values.bytes + page->value_at, out, found);
        page->value_at += found * page->length;
    }
    if (found < count) spread(out, size, present, count, found);
    return count;
}

/* --- texts --- */

/* Where the next `count` texts are. Returns their bytes together. */
static int64_t find_texts(Page *page, const uint8_t **texts, int32_t *sizes, int64_t count)
{
    uint32_t places[BLOCK];
    int64_t total = 0, at = page->value_at;
    if (page->is_coded) {
        if (!take_places(page, places, count)) return ODD;
        for (int64_t i = 0; i < count; i++) {
            int32_t start = page->ends[places[i]];
            texts[i] = page->dictionary.bytes + start;
            sizes[i] = page->ends[places[i] + 1] - start;
            total += sizes[i];
        }
        return total;
    }
    for (int64_t i = 0; i < count; i++) {
        uint32_t size;
        if (page->values.size - at < 4) return ODD;
        memcpy(&size, page->values.bytes + at, 4);
        at += 4;
        if (size > (uint64_t)(page->values.size - at) || size > INT32_MAX) return ODD;
        texts[i] = page->values.bytes + at;
        sizes[i] = (int32_t)size;
        at += size;
        total += size;
    }
    page->value_at = at;
    return total;
}

/* Copy a text; `is_loose`: bytes behind it may be read, and written, SLACK of them. */
static void copy_text(uint8_t *to, const uint8_t *from, int32_t size, int is_loose)
{
    if (is_loose && size <= 4 * SLACK) {
        for (int32_t i = 0; i < size; i += SLACK) memcpy(to + i, from + i, SLACK);
    } else if (size) {
        memcpy(to, from, (size_t)size);
    }
}

static int64_t take_texts(Page *page, int64_t row, int64_t count)
{
    uint32_t present[BLOCK];
    const uint8_t *texts[BLOCK];
    int32_t sizes[BLOCK];
    Page before = *page;
    int64_t found = take_levels(page, row, count, present), next = 0, used = page->used;
    if (found < 0) return ODD;
    int64_t total = find_texts(page, texts, sizes, found);
    if (total < 0) return ODD;
    if (total > page->room - used) {
        *page = before;
        return NO_ROOM;
    }
    if (total > INT32_MAX - used) return ODD;
    /* A dictionary has as much behind its texts; of a page, the last ones may lie at its end. */
    int is_loose = total + SLACK <= page->room - used &&
                   (page->is_coded || page->values.size - page->value_at >= SLACK);
    int has_nulls = found < count;
    for (int64_t i = 0; i < count; i++) {
        if (!has_nulls || present[i]) {
            copy_text(page->out + used, texts[next], sizes[next], is_loose);
            used += sizes[next++];
        }
        page->offsets[row + i + 1] = (int32_t)used;
    }
    page->used = used;
    return count;
}

/* Return how many bytes the next texts have, up to a block of them; they are not taken. */
static int64_t measure(Page *page, int64_t count)
{
    uint32_t present[BLOCK];
    const uint8_t *texts[BLOCK];
    int32_t sizes[BLOCK];
    uint8_t validity[BLOCK / 8];
    Page before = *page;
    page->validity = validity;
    int64_t found = take_levels(page, 0, count, present);
    int64_t total = found < 0 ? ODD : find_texts(page, texts, sizes, found);
    *page = before;
    return total;
}

/* Take rows until there are enough, the page ends or the room does; returns how many. */
static int64_t take_rows(Page *page, int64_t row, int64_t count)
{
    int64_t done = 0, most = BLOCK;
    count = least(count, page->rows);
    while (done < count) {
        int64_t block = least(most, count - done), found;
        found = page->form == TEXT ? take_texts(page, row + done, block)
                                   : take_fixed(page, row + done, block);
        if (found < 0) return ODD;
        if (found == NO_ROOM) { /* fewer of them may find room */
            if (block == 1) break;
            most = block / 2;
            continue;
        }
        done += found;
        page->rows -= found;
    }
    return done;
}

#endif
