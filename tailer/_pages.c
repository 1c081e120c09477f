/* Pages of flat Parquet columns, decoded straight into the buffers of Arrow arrays.
 *
 * `chunks` and `header` read where the pages of a column are, `dictionary` prepares a dictionary page,
 * `begin` and `take` decode the values of a data page, as many rows at a time as a batch has. Known are
 * the encodings that nearly all writers use for such columns: plain values, and numbers of values in a
 * dictionary, which are, like the levels that tell nulls, a hybrid of runs and packed numbers.
 *
 * Whatever is unusual is answered with "odd", and another reader judges: it may well be sound. All
 * offsets are checked against the bytes that are given, but for those in `state` and `ends`, which are
 * made here. Numbers of fields and
 * enums are those of parquet.thrift. Only the stable ABI of Python 3.11 is used, and nothing is kept
 * of what is given.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "_thrift.h"

/* How plain values become Arrow's: copied, widened to decimals of 16 bytes, or texts. */
enum { COPY4, COPY8, DECIMAL4, DECIMAL8, DECIMAL_FIXED, TEXT };
enum { PLAIN = 0, PLAIN_DICTIONARY = 2, RLE = 3, RLE_DICTIONARY = 8 };
enum { DATA_PAGE = 0, DICTIONARY_PAGE = 2, DATA_PAGE_V2 = 3 };
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

/* Where the decoding of a page is. Python keeps it as bytes between two calls. */
typedef struct {
    int64_t rows;     /* not taken yet */
    int64_t value_at; /* where the next plain value begins */
    int64_t width;    /* of the numbers of a dictionary's values, in bits */
    int64_t nulls;    /* taken since the last call of `nulls` */
    Runs levels, numbers;
} State;

typedef struct {
    State *state;
    int form, is_nullable, is_coded;
    int64_t length;       /* bytes of a plain value */
    Bytes levels, values; /* of the page */
    Bytes dictionary;     /* its values as `dictionary` gives them, */
    const int32_t *ends;  /* and, for texts, where each begins, and the last one ends */
    int64_t entries;
    uint8_t *validity, *out; /* of the array */
    int32_t *offsets;
    int64_t room, used; /* bytes of texts */
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
        return form == TEXT;
    }
}

static int size_of(int form) { return form == COPY4 ? 4 : form == COPY8 ? 8 : 16; }

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
    Runs *levels = &page->state->levels;
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
    page->state->nulls += count - found;
    return found;
}

/* Numbers of the dictionary's values, each of which is there. */
static int take_places(Page *page, uint32_t *places, int64_t count)
{
    State *state = page->state;
    if (!take_numbers(&state->numbers, page->values, (int)state->width, places, count)) return 0;
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
    State *state = page->state;
    int size = size_of(page->form);
    uint8_t *out = page->out + row * size;
    int64_t found = take_levels(page, row, count, present);
    if (found < 0) return ODD;
    if (page->is_coded) {
        if (!take_places(page, places, found)) return ODD;
        if (found) gather(size, page->dictionary.bytes, places, out, found);
    } else {
        if (found > (page->values.size - state->value_at) / page->length) return ODD;
        if (found) convert(page->form, page->length, page->values.bytes + state->value_at, out, found);
        state->value_at += found * page->length;
    }
    if (found < count) spread(out, size, present, count, found);
    return count;
}

/* --- texts --- */

/* Where the next `count` texts are. Returns their bytes together. */
static int64_t find_texts(Page *page, const uint8_t **texts, int32_t *sizes, int64_t count)
{
    uint32_t places[BLOCK];
    int64_t total = 0, at = page->state->value_at;
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
    page->state->value_at = at;
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
    State before = *page->state;
    int64_t found = take_levels(page, row, count, present), next = 0, used = page->used;
    if (found < 0) return ODD;
    int64_t total = find_texts(page, texts, sizes, found);
    if (total < 0 || total > INT32_MAX - used) return ODD;
    if (total > page->room - used) {
        *page->state = before;
        return NO_ROOM;
    }
    /* A dictionary has as much behind its texts; of a page, the last ones may lie at its end. */
    int is_loose = total + SLACK <= page->room - used &&
                   (page->is_coded || page->values.size - page->state->value_at >= SLACK);
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

/* Take rows until there are enough, the page ends or the room does; returns how many. */
static int64_t take_rows(Page *page, int64_t row, int64_t count)
{
    int64_t done = 0;
    count = least(count, page->state->rows);
    while (done < count) {
        int64_t block = least(BLOCK, count - done), found;
        found = page->form == TEXT ? take_texts(page, row + done, block)
                                   : take_fixed(page, row + done, block);
        if (found < 0) return ODD;
        if (found == NO_ROOM) break;
        done += found;
        page->state->rows -= found;
    }
    return done;
}

/* --- what Python calls --- */

static Bytes bytes_of(const Py_buffer *buffer)
{
    return (Bytes){buffer->buf, buffer->buf ? buffer->len : 0};
}

/* begin(state, rows, width): a data page of these rows. `width`: of the numbers of a dictionary's
 * values, which begin at the page's second byte; -1: its values are plain. */
static PyObject *begin(PyObject *self, PyObject *arguments)
{
    Py_buffer state;
    long long rows, width;
    if (!PyArg_ParseTuple(arguments, "w*LL", &state, &rows, &width)) return NULL;
    if (state.len != sizeof(State) || rows < 0 || width < -1 || width > 32) {
        PyBuffer_Release(&state);
        PyErr_SetString(PyExc_ValueError, "the state, or a number of it, is invalid");
        return NULL;
    }
    State fresh = {.rows = rows, .width = width, .numbers.at = 1};
    fresh.nulls = ((State *)state.buf)->nulls;
    memcpy(state.buf, &fresh, sizeof(fresh));
    PyBuffer_Release(&state);
    Py_RETURN_NONE;
}

/* nulls(state) -> how many rows were null since the last call. */
static PyObject *nulls(PyObject *self, PyObject *argument)
{
    Py_buffer state;
    long long count = -1;
    if (PyObject_GetBuffer(argument, &state, PyBUF_WRITABLE)) return NULL;
    if (state.len == sizeof(State)) {
        count = ((State *)state.buf)->nulls;
        ((State *)state.buf)->nulls = 0;
    }
    PyBuffer_Release(&state);
    return PyLong_FromLongLong(count);
}

static int is_consistent(const Page *page, const Py_buffer *given, long long rows, long long row)
{
    const State *state = page->state;
    int64_t needed = page->form == TEXT || rows < 0 ? 0 : rows * size_of(page->form);
    if (given[0].len != sizeof(State) || (uintptr_t)given[0].buf % sizeof(int64_t)) return 0;
    if (!is_form(page->form, page->length) || rows < 0 || row < 0 || row > rows) return 0;
    if (rows > INT32_MAX || given[6].len < needed || state->rows < 0) return 0;
    if (page->is_coded != (state->width >= 0)) return 0;
    if (page->is_nullable && given[4].len < (rows + 7) / 8) return 0;
    if (state->value_at < 0 || state->value_at > page->values.size || state->width > 32) return 0;
    if (state->levels.left < 0 || state->numbers.left < 0) return 0;
    if (page->is_coded && page->form != TEXT)
        return page->entries * size_of(page->form) <= page->dictionary.size;
    if (page->form != TEXT) return 1;
    if (given[5].len < (rows + 1) * 4 || (uintptr_t)given[5].buf % 4) return 0;
    if (page->used < 0 || page->used > page->room) return 0;
    return !page->is_coded || !(given[7].len % 4 || (uintptr_t)given[7].buf % 4);
}

/* take(state, form, length, levels, values, dictionary, validity, offsets, out, ends, rows, row, used)
 * -> (count, used, left): decode `count` rows of an array of `rows`, from `row` on. `left` are the
 * page's other rows. Fewer than wanted: the page is at its end, or the texts need more room behind
 * `used`. A count of -1: odd. None for `levels` is a column without nulls, for `dictionary` a page of
 * plain values, whose `ends` are None too. With row 0, all rows are made valid at first. */
static PyObject *take(PyObject *self, PyObject *arguments)
{
    enum { STATE, LEVELS, VALUES, DICTIONARY, VALIDITY, OFFSETS, OUT, ENDS, BUFFERS };
    Py_buffer given[BUFFERS];
    int form;
    long long length, rows, row, used, count = ODD;
    memset(given, 0, sizeof(given));
    if (!PyArg_ParseTuple(
            arguments, "w*iLz*y*z*w*w*w*z*LLL", &given[STATE], &form, &length, &given[LEVELS],
            &given[VALUES], &given[DICTIONARY], &given[VALIDITY], &given[OFFSETS], &given[OUT],
            &given[ENDS], &rows, &row, &used))
        return NULL;
    Page page = {
        .state = given[STATE].buf, .form = form, .length = length,
        .is_nullable = given[LEVELS].buf != NULL, .is_coded = given[DICTIONARY].buf != NULL,
        .levels = bytes_of(&given[LEVELS]), .values = bytes_of(&given[VALUES]),
        .dictionary = bytes_of(&given[DICTIONARY]), .ends = given[ENDS].buf,
        .validity = given[VALIDITY].buf, .out = given[OUT].buf, .offsets = given[OFFSETS].buf,
        .room = given[OUT].len, .used = used,
    };
    PyObject *answer = NULL;
    if (page.is_coded)
        page.entries = form == TEXT ? given[ENDS].len / 4 - 1
                                    : given[DICTIONARY].len / size_of(form);
    if (is_consistent(&page, given, rows, row)) {
        Py_BEGIN_ALLOW_THREADS
        if (!row && page.is_nullable) memset(page.validity, 0xFF, (size_t)given[VALIDITY].len);
        if (!row && form == TEXT) page.offsets[0] = 0;
        count = take_rows(&page, row, rows - row);
        Py_END_ALLOW_THREADS
        answer = Py_BuildValue("(LLL)", count, (long long)page.used, (long long)page.state->rows);
    } else {
        PyErr_SetString(PyExc_ValueError, "a buffer is too small, or a number is out of range");
    }
    for (int i = 0; i < BUFFERS; i++) PyBuffer_Release(&given[i]);
    return answer;
}

/* Put texts that lie behind their sizes side by side, and where they begin and end into `ends`. */
static int split_texts(Bytes in, int64_t count, uint8_t *to, uint8_t *ends)
{
    int64_t at = 0;
    int32_t used = 0;
    memcpy(ends, &used, 4);
    for (int64_t i = 0; i < count; i++) {
        uint32_t size;
        if (in.size - at < 4) return 0;
        memcpy(&size, in.bytes + at, 4);
        if (size > (uint64_t)(in.size - at - 4)) return 0;
        if (size) memcpy(to + used, in.bytes + at + 4, size);
        used += (int32_t)size;
        at += 4 + size;
        memcpy(ends + (i + 1) * 4, &used, 4);
    }
    memset(to + used, 0, (size_t)(in.size - used) + SLACK);
    return 1;
}

/* dictionary(form, length, values, count) -> (values, ends) or None if they are odd. `ends` is where
 * each text begins, and the last one ends. */
static PyObject *dictionary(PyObject *self, PyObject *arguments)
{
    int form, is_right = 0;
    long long length, count;
    Py_buffer given;
    PyObject *values = NULL, *ends = NULL, *answer = NULL;
    if (!PyArg_ParseTuple(arguments, "iLy*L", &form, &length, &given, &count)) return NULL;
    Bytes in = bytes_of(&given);
    int64_t each = form == TEXT ? 4 : (int64_t)length; /* the least that a value takes */
    if (!is_form(form, length)) {
        PyErr_SetString(PyExc_ValueError, "the form or the length is out of range");
    } else if (count < 0 || in.size > INT32_MAX || count > in.size / each) {
        answer = Py_NewRef(Py_None);
    } else {
        int64_t size = form == TEXT ? in.size + SLACK : count * size_of(form);
        values = PyBytes_FromStringAndSize(NULL, size);
        ends = PyBytes_FromStringAndSize(NULL, form == TEXT ? (count + 1) * 4 : 0);
    }
    if (values && ends) {
        uint8_t *to = (uint8_t *)PyBytes_AsString(values), *begun = (uint8_t *)PyBytes_AsString(ends);
        Py_BEGIN_ALLOW_THREADS
        is_right = form != TEXT || split_texts(in, count, to, begun);
        if (form != TEXT && count) convert(form, length, in.bytes, to, count);
        Py_END_ALLOW_THREADS
        answer = is_right ? Py_BuildValue("(OO)", values, ends) : Py_NewRef(Py_None);
    }
    Py_XDECREF(values);
    Py_XDECREF(ends);
    PyBuffer_Release(&given);
    return answer;
}

/* What a page's header says; numbers that it lacks are -1. */
typedef struct {
    int64_t kind, unpacked, stored, values, encoding, levels, nested_size, levels_size, is_packed;
} Header;

static void read_values_header(Input *in, Header *found, int version)
{
    int number = 0, wire;
    while (next_field(in, &number, &wire)) {
        if (wire == I32 && number == 1) {
            found->values = read_size(in);
        } else if (wire == I32 && number == (version == 2 ? 4 : 2)) {
            found->encoding = read_size(in);
        } else if (wire == I32 && version == 1 && number == 3) {
            found->levels = read_size(in);
        } else if (wire == I32 && version == 2 && number == 5) {
            found->levels_size = read_size(in);
        } else if (wire == I32 && version == 2 && number == 6) {
            found->nested_size = read_size(in);
        } else if (version == 2 && number == 7 && (wire == TRUE || wire == FALSE)) {
            found->is_packed = wire == TRUE;
        } else {
            skip(in, wire, 0);
        }
    }
}

/* header(bytes) -> (size, kind, unpacked, stored, values, encoding, levels, levels_size, is_packed) or
 * None if it is odd, or not whole. `levels` is their encoding in a first-version page. */
static PyObject *header(PyObject *self, PyObject *arguments)
{
    Py_buffer given;
    if (!PyArg_ParseTuple(arguments, "y*", &given)) return NULL;
    const uint8_t *start = given.buf;
    Input in = {start, start + given.len, 0};
    Header found = {-1, -1, -1, -1, -1, -1, 0, 0, 1};
    int number = 0, wire, last = STRUCT;
    while (next_field(&in, &number, &wire)) {
        if (number <= 3 && wire == I32) {
            int64_t value = read_size(&in);
            *(number == 1 ? &found.kind : number == 2 ? &found.unpacked : &found.stored) = value;
        } else if (wire == STRUCT && (number == 5 || number == 7 || number == 8)) {
            read_values_header(&in, &found, number == 8 ? 2 : number == 5 ? 1 : 0);
            last = number;
        } else {
            skip(&in, wire, 0);
        }
    }
    int is_right = (found.kind == DATA_PAGE && last == 5) ||
                   (found.kind == DICTIONARY_PAGE && last == 7) ||
                   (found.kind == DATA_PAGE_V2 && last == 8);
    /* Both numbers of a dictionary's header are where those of a first-version page are. */
    long long size = in.at - start;
    PyBuffer_Release(&given);
    if (in.bad || !is_right || found.unpacked < 0 || found.stored < 0 || found.values < 0 ||
        found.encoding < 0 || found.nested_size)
        Py_RETURN_NONE;
    return Py_BuildValue(
        "(LLLLLLLLL)", size, (long long)found.kind, (long long)found.unpacked,
        (long long)found.stored, (long long)found.values, (long long)found.encoding,
        (long long)found.levels, (long long)found.levels_size, (long long)found.is_packed);
}

/* ColumnChunk -> (type, codec, encodings, values, unpacked, start, size); NULL and `bad` if odd. The
 * encodings are a mask. */
static PyObject *read_chunk(Input *in)
{
    int number = 0, wire, inner;
    long long found[12] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1}, encodings = 0;
    while (next_field(in, &number, &wire)) {
        if (number == 1 || number >= 8) in->bad = 1; /* in another file, or encrypted */
        if (number != 3 || wire != STRUCT) {
            skip(in, wire, 0);
            continue;
        }
        int field = 0;
        while (next_field(in, &field, &wire)) {
            if (field == 2 && wire == LIST) {
                uint64_t count = read_list(in, &inner);
                if (inner != I32) in->bad = 1;
                for (; count && !in->bad; count--) {
                    int64_t encoding = read_size(in);
                    encodings |= encoding < 32 ? 1LL << encoding : 1LL << 32;
                }
            } else if (field < 12 && field != 8 && (wire == I32 || wire == I64)) {
                found[field] = read_size(in);
            } else {
                skip(in, wire, 0);
            }
        }
    }
    long long start = found[11] > 0 && found[11] < found[9] ? found[11] : found[9];
    if (in->bad || found[1] < 0 || found[4] < 0 || found[5] < 0 || found[6] < 0 || found[7] < 0 ||
        start < 0) {
        in->bad = 1;
        return NULL;
    }
    return Py_BuildValue(
        "(LLLLLLL)", found[1], found[4], encodings, found[5], found[6], start, found[7]);
}

static PyObject *read_group(Input *in)
{
    int number = 0, wire, items;
    if (!next_field(in, &number, &wire) || number != 1 || wire != LIST) return NULL;
    uint64_t count = read_list(in, &items);
    if (in->bad || items != STRUCT) return NULL;
    PyObject *chunks = PyList_New(0);
    for (uint64_t i = 0; chunks && i < count; i++) {
        PyObject *chunk = read_chunk(in);
        if (!chunk || PyList_Append(chunks, chunk)) Py_CLEAR(chunks);
        Py_XDECREF(chunk);
    }
    return chunks;
}

/* chunks(footer, group) -> the column chunks of a row group, in the order of the schema's leaves;
 * None if they are odd. */
static PyObject *chunks(PyObject *self, PyObject *arguments)
{
    Py_buffer given;
    long long group;
    int number = 0, wire;
    PyObject *answer = NULL;
    if (!PyArg_ParseTuple(arguments, "y*L", &given, &group)) return NULL;
    const uint8_t *start = given.buf;
    Input in = {start, start + given.len, 0};
    while (next_field(&in, &number, &wire)) {
        if (number != 4 || wire != LIST) {
            skip(&in, wire, 0);
            continue;
        }
        uint64_t count = read_list(&in, &wire);
        if (wire != STRUCT || group < 0 || (uint64_t)group >= count) break;
        for (; group && !in.bad; group--) skip(&in, STRUCT, 0);
        if (!in.bad) answer = read_group(&in);
        break;
    }
    PyBuffer_Release(&given);
    if (!answer && !PyErr_Occurred()) Py_RETURN_NONE;
    return answer;
}

static PyMethodDef functions[] = {
    {"begin", begin, METH_VARARGS, "begin(state, rows, width)"},
    {"chunks", chunks, METH_VARARGS, "chunks(footer, group) -> list or None"},
    {"dictionary", dictionary, METH_VARARGS,
     "dictionary(form, length, values, count) -> (values, ends) or None"},
    {"nulls", nulls, METH_O, "nulls(state) -> int"},
    {"header", header, METH_VARARGS, "header(bytes) -> tuple or None"},
    {"take", take, METH_VARARGS,
     "take(state, form, length, levels, values, dictionary, validity, offsets, out, ends, rows, row, "
     "used) -> (count, used, left)"},
    {NULL, NULL, 0, NULL},
};

static int filled(PyObject *module)
{
    const uint16_t one = 1;
    if (!*(const uint8_t *)&one) { /* Arrow's and Parquet's numbers are copied as they are */
        PyErr_SetString(PyExc_ImportError, "for little-endian processors");
        return -1;
    }
    /* INTERFACE is raised with each change of what the functions take or give; see decode/pages.py. */
    return PyModule_AddIntConstant(module, "INTERFACE", 1) ||
                   PyModule_AddIntConstant(module, "STATE_SIZE", sizeof(State))
               ? -1
               : 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, filled}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_pages", NULL, 0, functions, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__pages(void) { return PyModuleDef_Init(&definition); }
