/* Columns of bytes put together row by row: what Arrow's join does, without its cost for each value.
 *
 * Two ways: into an array of strings (join), and into the bodies of Kafka's record batches (records;
 * Kafka's documentation, "Record": every number is a zigzag varint). Beside them a look for what JSON
 * must escape, and Kafka's murmur2. Everything here has its twin in Python over Arrow's functions,
 * which is what runs where this file is not compiled; tests hold both to the same bytes.
 *
 * Only the stable ABI of Python 3.11 is used, so that one build serves all later ones. No function
 * keeps a reference to what it was given, and none holds the interpreter's lock while it copies.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* What a part writes, for a value that is there and for one that is null:
 *
 *   CONSTANT  the same bytes in every row
 *   RAW       the value                                 nothing
 *   TEXT      the value                                 null
 *   QUOTED    the value in double quotes                null
 *   SIZED     its size and the value                    -1
 *   OPTIONAL  the constant, its size and the value      nothing
 *   HEADERS   how many headers the record has: `always`, and the OPTIONAL parts that are there
 *   INT32, INT64  the number                            null
 *   DECIMAL   128 bits, with the constant's one byte as scale: 0 to 6 digits behind the point; null
 *   DATE      32 bits, days since 1970: a double quote, the date in ISO 8601, the constant; null
 *   MICROS    64 bits, microseconds since 1970: the same with the time; null
 *   GROUP     the size of what the parts of a list within the list write, and that
 */
enum { CONSTANT, RAW, TEXT, QUOTED, SIZED, OPTIONAL, HEADERS, INT32, INT64, DECIMAL, DATE, MICROS, GROUP };

static const char NONE[] = "null";
enum { NONE_SIZE = 4, VARINT_MAX = 10 };

/* So many rows have numbers of 64 bits in memory that can be addressed. */
#define ROWS_MAX (PY_SSIZE_T_MAX / (Py_ssize_t)sizeof(int64_t) - 1)

/* An array's value i lies in data from ends[i] to ends[i + 1], as Arrow has it. */
typedef struct {
    int kind;
    const char *constant;
    Py_ssize_t constant_size;
    const int32_t *ends;
    const char *data;
    const uint8_t *validity; /* Arrow's bitmap, or NULL: all are there */
    Py_ssize_t start;        /* the array's first value in its buffers */
    Py_ssize_t always;
    Py_ssize_t members;      /* of a group: how many of the parts behind it are its own */
    Py_buffer ends_view, data_view, validity_view, constant_view;
} Part;

typedef struct {
    Part *parts;
    Py_ssize_t count, room;
} Parts;

static int view_of(PyObject *object, Py_buffer *view)
{
    if (object == Py_None) {
        view->obj = NULL;
        view->buf = NULL;
        view->len = 0;
        return 0;
    }
    return PyObject_GetBuffer(object, view, PyBUF_SIMPLE);
}

static void release(Parts *all)
{
    for (Py_ssize_t i = 0; i < all->count; i++) {
        Part *part = &all->parts[i];
        if (part->constant_view.obj) PyBuffer_Release(&part->constant_view);
        if (part->ends_view.obj) PyBuffer_Release(&part->ends_view);
        if (part->data_view.obj) PyBuffer_Release(&part->data_view);
        if (part->validity_view.obj) PyBuffer_Release(&part->validity_view);
    }
    PyMem_Free(all->parts);
    all->parts = NULL;
    all->count = 0;
}

static int aligned(const void *numbers, size_t size) { return (uintptr_t)numbers % size == 0; }

/* Whether the rows 0 to rows - 1 of an array lie within its buffers, in order. What is compared is what
 * a buffer holds, by division: a product or a sum of the caller's numbers may be too large. */
static int sound(const Part *part, Py_ssize_t rows)
{
    const int32_t *ends = part->ends;
    Py_ssize_t values = part->ends_view.len / (Py_ssize_t)sizeof(int32_t) - 1;
    if (!aligned(ends, sizeof(int32_t))) return 0;
    if (part->start < 0 || part->start > values || rows > values - part->start) return 0;
    Py_ssize_t last = part->start + rows;
    if (part->validity && part->validity_view.len < last / 8 + (last % 8 != 0)) return 0;
    if (ends[part->start] < 0 || ends[last] > part->data_view.len) return 0;
    for (Py_ssize_t i = part->start; i < last; i++)
        if (ends[i] > ends[i + 1]) return 0;
    return 1;
}

static inline int64_t long_at(const char *from)
{
    int64_t number;
    memcpy(&number, from, sizeof number);
    return number;
}

static inline int32_t int_at(const char *from)
{
    int32_t number;
    memcpy(&number, from, sizeof number);
    return number;
}

static inline int is_there(const Part *part, Py_ssize_t row)
{
    Py_ssize_t at = part->start + row;
    return !part->validity || (part->validity[at >> 3] >> (at & 7) & 1);
}

static const int64_t DAY_US = 86400000000;
/* 0001-01-01 and 10000-01-01: between them a year has four digits. */
enum { FIRST_DAY = -719162, END_DAY = 2932897, DATE_SIZE = 10, TIME_SIZE = 26, SCALE_MAX = 6 };

static Py_ssize_t width_of(int kind)
{
    if (kind == DECIMAL) return 16;
    return kind == INT64 || kind == MICROS ? 8 : 4;
}

/* The same of an array of numbers: whether it lies in its buffer, and all of it can be written. */
static int sound_numbers(const Part *part, Py_ssize_t rows)
{
    Py_ssize_t width = width_of(part->kind), values = part->data_view.len / width;
    if (part->start < 0 || part->start > values || rows > values - part->start) return 0;
    Py_ssize_t last = part->start + rows;
    if (part->validity && part->validity_view.len < last / 8 + (last % 8 != 0)) return 0;
    if (part->kind == DECIMAL)
        return part->constant_size == 1 && (unsigned char)part->constant[0] <= SCALE_MAX;
    if (part->kind != DATE && part->kind != MICROS) return 1;
    int64_t unit = part->kind == DATE ? 1 : DAY_US;
    for (Py_ssize_t row = 0; row < rows; row++) {
        if (!is_there(part, row)) continue;
        const char *at = part->data + (part->start + row) * width;
        int64_t number = part->kind == DATE ? int_at(at) : long_at(at);
        if (number < FIRST_DAY * unit || number >= END_DAY * unit) return 0;
    }
    return 1;
}

static int read_array(Part *part, PyObject *item, Py_ssize_t rows)
{
    PyObject *ends, *data, *validity, *head;
    if (!PyArg_ParseTuple(item, "iOOOnO", &part->kind, &ends, &data, &validity, &part->start, &head))
        return -1;
    if (part->kind < RAW || part->kind > MICROS || part->kind == HEADERS) {
        PyErr_SetString(PyExc_ValueError, "no such kind of part");
        return -1;
    }
    if (view_of(ends, &part->ends_view) || view_of(data, &part->data_view) ||
        view_of(validity, &part->validity_view) || view_of(head, &part->constant_view))
        return -1;
    part->ends = part->ends_view.buf;
    part->data = part->data_view.buf;
    part->validity = part->validity_view.buf;
    part->constant = part->constant_view.buf;
    part->constant_size = part->constant_view.len;
    if (part->kind > HEADERS ? !sound_numbers(part, rows) : !sound(part, rows)) {
        PyErr_SetString(PyExc_ValueError, "an array reaches beyond its buffers");
        return -1;
    }
    return 0;
}

/* One part that is no group. */
static int read_part(Part *part, PyObject *item, Py_ssize_t rows)
{
    if (!part || !item) return -1;
    if (PyBytes_Check(item)) {
        part->kind = CONSTANT;
        if (view_of(item, &part->constant_view)) return -1;
        part->constant = part->constant_view.buf;
        part->constant_size = part->constant_view.len;
        return 0;
    }
    if (!PyLong_Check(item)) return read_array(part, item, rows);
    part->kind = HEADERS;
    part->always = PyLong_AsSsize_t(item);
    if (part->always == -1 && PyErr_Occurred()) return -1;
    if (part->always < 0 || part->always > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "no such number of headers");
        return -1;
    }
    return 0;
}

/* The next part, or NULL: a list has grown while it was read. */
static Part *next_part(Parts *all)
{
    if (all->count < all->room) return &all->parts[all->count++];
    PyErr_SetString(PyExc_ValueError, "more parts than there were");
    return NULL;
}

/* The members of a group, behind it. Those that speak of a record's headers are none of a value. */
static int read_group(PyObject *list, Py_ssize_t rows, Parts *all)
{
    Part *group = next_part(all);
    if (!group) return -1;
    group->kind = GROUP;
    for (Py_ssize_t i = 0; i < PyList_Size(list); i++) {
        Part *part = next_part(all);
        group->members++;
        if (read_part(part, PyList_GetItem(list, i), rows)) return -1;
        if (part->kind == HEADERS || part->kind == OPTIONAL) {
            PyErr_SetString(PyExc_ValueError, "no such kind of part in a group");
            return -1;
        }
    }
    return 0;
}

/* How many parts a list has, with those of the lists in it. */
static Py_ssize_t count_parts(PyObject *list)
{
    Py_ssize_t own = PyList_Size(list), count = own;
    for (Py_ssize_t i = 0; i < own; i++) {
        PyObject *item = PyList_GetItem(list, i);
        if (PyList_Check(item)) count += PyList_Size(item);
    }
    return count;
}

static int read_parts(PyObject *list, Py_ssize_t rows, Parts *all)
{
    Py_ssize_t own = PyList_Size(list);
    if (own < 0) return -1;
    if (rows < 0) {
        PyErr_SetString(PyExc_ValueError, "a negative number of rows");
        return -1;
    }
    if (rows > ROWS_MAX) {
        PyErr_SetString(PyExc_OverflowError, "too many rows");
        return -1;
    }
    Py_ssize_t count = count_parts(list);
    all->parts = PyMem_Calloc(count ? (size_t)count : 1, sizeof(Part));
    if (!all->parts) {
        PyErr_NoMemory();
        return -1;
    }
    all->room = count;
    for (Py_ssize_t i = 0; i < own; i++) {
        PyObject *item = PyList_GetItem(list, i);
        int failed = item && PyList_Check(item) ? read_group(item, rows, all)
                                                : read_part(next_part(all), item, rows);
        if (failed) {
            release(all);
            return -1;
        }
    }
    return 0;
}

static inline uint64_t zigzag(int64_t number) { return ((uint64_t)number << 1) ^ (uint64_t)(number >> 63); }

static inline int varint_size(int64_t number)
{
    uint64_t left = zigzag(number);
    int size = 1;
    while (left > 0x7F) {
        left >>= 7;
        size++;
    }
    return size;
}

static inline char *put_varint(char *out, int64_t number)
{
    uint64_t left = zigzag(number);
    while (left > 0x7F) {
        *out++ = (char)(0x80 | (left & 0x7F));
        left >>= 7;
    }
    *out++ = (char)left;
    return out;
}

static inline char *put(char *out, const char *from, Py_ssize_t size)
{
    if (size) memcpy(out, from, (size_t)size); /* from nothing, no byte may be copied either */
    return out + size;
}

static int64_t headers_of(const Parts *all, const Part *part, Py_ssize_t row)
{
    int64_t number = part->always;
    for (Py_ssize_t i = 0; i < all->count; i++)
        if (all->parts[i].kind == OPTIONAL) number += is_there(&all->parts[i], row);
    return number;
}

static int digits_of(uint64_t number)
{
    for (int digits = 1;; digits += 4, number /= 10000) {
        if (number < 10) return digits;
        if (number < 100) return digits + 1;
        if (number < 1000) return digits + 2;
        if (number < 10000) return digits + 3;
    }
}

/* The last `count` digits of a number, with zeros in front. */
static inline char *put_digits(char *out, uint64_t number, int count)
{
    for (int i = count - 1; i >= 0; i--, number /= 10) out[i] = (char)('0' + number % 10);
    return out + count;
}

static inline uint64_t magnitude(int64_t number)
{
    return number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
}

static inline char *put_int(char *out, int64_t number)
{
    if (number < 0) *out++ = '-';
    return put_digits(out, magnitude(number), digits_of(magnitude(number)));
}

enum { LIMBS = 5, LIMB = 1000000000, LIMB_DIGITS = 9 };

/* A decimal without its sign, as numbers below LIMB, the lowest first; returns how many it has. */
static int limbs_of(const char *from, uint32_t limbs[LIMBS], int *negative)
{
    uint64_t low = (uint64_t)long_at(from), high = (uint64_t)long_at(from + 8);
    *negative = (int)(high >> 63);
    if (*negative) {
        low = 0 - low;
        high = ~high + !low;
    }
    uint32_t words[4] = {(uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high, (uint32_t)(high >> 32)};
    int count = 0;
    do {
        uint64_t rest = 0;
        for (int i = high ? 3 : 1; i >= 0; i--) {
            rest = rest << 32 | words[i];
            words[i] = (uint32_t)(rest / LIMB);
            rest %= LIMB;
        }
        limbs[count++] = (uint32_t)rest;
    } while (words[0] | words[1] | words[2] | words[3]);
    return count;
}

static Py_ssize_t decimal_size(const Part *part, const char *from)
{
    uint32_t limbs[LIMBS];
    int negative, scale = part->constant[0], count = limbs_of(from, limbs, &negative);
    int digits = LIMB_DIGITS * (count - 1) + digits_of(limbs[count - 1]);
    return negative + (digits > scale ? digits : scale + 1) + (scale > 0);
}

static char *put_decimal(char *out, const Part *part, const char *from)
{
    uint32_t limbs[LIMBS];
    int negative, scale = part->constant[0], count = limbs_of(from, limbs, &negative);
    int digits = LIMB_DIGITS * (count - 1) + digits_of(limbs[count - 1]);
    if (negative) *out++ = '-';
    for (; digits <= scale; digits++) *out++ = '0'; /* in front of a number below one */
    out = put_int(out, limbs[--count]);
    while (count) out = put_digits(out, limbs[--count], LIMB_DIGITS);
    if (scale) {
        memmove(out - scale + 1, out - scale, (size_t)scale);
        out[-scale] = '.';
        out++;
    }
    return out;
}

/* Days since 1970 as a date: years are counted from March on, so that a leap day is a year's last. */
static char *put_date(char *out, int64_t days)
{
    int64_t day = days + 719468, era = day / 146097; /* of 400 years each, from 0000-03-01 */
    day -= era * 146097;
    int64_t year = (day - day / 1460 + day / 36524 - day / 146096) / 365;
    day -= 365 * year + year / 4 - year / 100;
    int64_t month = (5 * day + 2) / 153;
    day -= (153 * month + 2) / 5;
    year += 400 * era + (month >= 10);
    out = put_digits(out, (uint64_t)year, 4);
    *out++ = '-';
    out = put_digits(out, (uint64_t)((month + 2) % 12 + 1), 2);
    *out++ = '-';
    return put_digits(out, (uint64_t)(day + 1), 2);
}

static char *put_time(char *out, int64_t micros)
{
    int64_t days = micros / DAY_US, rest = micros % DAY_US;
    if (rest < 0) {
        rest += DAY_US;
        days--;
    }
    uint64_t second = (uint64_t)rest / 1000000;
    out = put_date(out, days);
    *out++ = 'T';
    out = put_digits(out, second / 3600, 2);
    *out++ = ':';
    out = put_digits(out, second / 60 % 60, 2);
    *out++ = ':';
    out = put_digits(out, second % 60, 2);
    *out++ = '.';
    return put_digits(out, (uint64_t)rest % 1000000, 6);
}

static Py_ssize_t number_size(const Part *part, Py_ssize_t row)
{
    const char *at = part->data + (part->start + row) * width_of(part->kind);
    if (part->kind == DATE) return 1 + DATE_SIZE + part->constant_size;
    if (part->kind == MICROS) return 1 + TIME_SIZE + part->constant_size;
    if (part->kind == DECIMAL) return decimal_size(part, at);
    int64_t number = part->kind == INT32 ? int_at(at) : long_at(at);
    return (number < 0) + digits_of(magnitude(number));
}

static char *put_number(char *out, const Part *part, Py_ssize_t row)
{
    const char *at = part->data + (part->start + row) * width_of(part->kind);
    if (part->kind == DECIMAL) return put_decimal(out, part, at);
    if (part->kind == INT32) return put_int(out, int_at(at));
    if (part->kind == INT64) return put_int(out, long_at(at));
    *out++ = '"';
    out = part->kind == DATE ? put_date(out, int_at(at)) : put_time(out, long_at(at));
    return put(out, part->constant, part->constant_size);
}

static Py_ssize_t part_size(const Parts *all, const Part *part, Py_ssize_t row)
{
    if (part->kind == CONSTANT) return part->constant_size;
    if (part->kind == HEADERS) return varint_size(headers_of(all, part, row));
    if (!is_there(part, row)) {
        if (part->kind == TEXT || part->kind == QUOTED || part->kind > HEADERS) return NONE_SIZE;
        return part->kind == SIZED;
    }
    if (part->kind > HEADERS) return number_size(part, row);
    const int32_t *ends = part->ends + part->start + row;
    Py_ssize_t own = ends[1] - ends[0], size = own;
    if (part->kind == QUOTED) size += 2;
    if (part->kind >= SIZED) size += varint_size(own);
    if (part->kind == OPTIONAL) size += part->constant_size;
    return size;
}

static Py_ssize_t row_size(const Parts *all, Py_ssize_t row)
{
    Py_ssize_t size = 0;
    const Part *end = all->parts + all->count;
    for (const Part *part = all->parts; part < end; part++) {
        if (part->kind != GROUP) {
            size += part_size(all, part, row);
            continue;
        }
        Py_ssize_t own = 0;
        for (const Part *last = part + part->members; part < last;) own += part_size(all, ++part, row);
        size += varint_size(own) + own;
    }
    return size;
}

static char *put_part(char *out, const Parts *all, const Part *part, Py_ssize_t row)
{
    if (part->kind == CONSTANT) return put(out, part->constant, part->constant_size);
    if (part->kind == HEADERS) return put_varint(out, headers_of(all, part, row));
    if (!is_there(part, row)) {
        if (part->kind == TEXT || part->kind == QUOTED || part->kind > HEADERS)
            return put(out, NONE, NONE_SIZE);
        return part->kind == SIZED ? put_varint(out, -1) : out;
    }
    if (part->kind > HEADERS) return put_number(out, part, row);
    const int32_t *ends = part->ends + part->start + row;
    Py_ssize_t own = ends[1] - ends[0];
    if (part->kind == OPTIONAL) out = put(out, part->constant, part->constant_size);
    if (part->kind >= SIZED) out = put_varint(out, own);
    if (part->kind == QUOTED) *out++ = '"';
    if (own) out = put(out, part->data + ends[0], own);
    if (part->kind == QUOTED) *out++ = '"';
    return out;
}

static char *put_row(char *out, const Parts *all, Py_ssize_t row)
{
    const Part *end = all->parts + all->count;
    for (const Part *part = all->parts; part < end; part++) {
        if (part->kind != GROUP) {
            out = put_part(out, all, part, row);
            continue;
        }
        /* Its size is known behind it: to write it costs less than to measure it again. A size has
         * a byte at least, so that nothing lies beyond the row's own end meanwhile. */
        char *body = out + 1, *at = body;
        for (const Part *last = part + part->members; part < last;) at = put_part(at, all, ++part, row);
        Py_ssize_t own = at - body;
        int head = varint_size(own);
        if (head > 1) memmove(out + head, body, (size_t)own);
        out = put_varint(out, own) + own;
    }
    return out;
}

/* join(parts, rows) -> (offsets, data) */
static PyObject *join(PyObject *self, PyObject *arguments)
{
    PyObject *list, *answer = NULL, *offsets = NULL, *data = NULL;
    Py_ssize_t rows;
    Parts all = {0};
    if (!PyArg_ParseTuple(arguments, "On", &list, &rows)) return NULL;
    if (read_parts(list, rows, &all)) return NULL;
    offsets = PyBytes_FromStringAndSize(NULL, (rows + 1) * (Py_ssize_t)sizeof(int32_t));
    if (!offsets) goto end;
    int32_t *ends = (int32_t *)PyBytes_AsString(offsets);
    int64_t total = 0;
    Py_BEGIN_ALLOW_THREADS
    ends[0] = 0;
    for (Py_ssize_t row = 0; row < rows; row++) {
        total += row_size(&all, row);
        if (total > INT32_MAX) break;
        ends[row + 1] = (int32_t)total;
    }
    Py_END_ALLOW_THREADS
    if (total > INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "the joined values are longer than 2 GiB");
        goto end;
    }
    data = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total);
    if (!data) goto end;
    char *out = PyBytes_AsString(data);
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t row = 0; row < rows; row++) out = put_row(out, &all, row);
    Py_END_ALLOW_THREADS
    answer = PyTuple_Pack(2, offsets, data);
end:
    Py_XDECREF(offsets);
    Py_XDECREF(data);
    release(&all);
    return answer;
}

/* A record's timestamp as its difference from the batch's, which is that of its first record. */
static inline int64_t delta_of(const int64_t *times, Py_ssize_t row, Py_ssize_t base)
{
    return times ? (int64_t)((uint64_t)times[row] - (uint64_t)times[base]) : 0;
}

/* What record batches are made of: `chosen` rows, those at places or all. */
typedef struct {
    Parts all;
    const int64_t *times, *places;
    Py_ssize_t rows, chosen, room, before;
    int64_t *sizes; /* of the records of one batch */
} Source;

static Py_ssize_t row_at(const Source *from, Py_ssize_t record)
{
    return from->places ? (Py_ssize_t)from->places[record] : record;
}

/* Measures the records of the next batch: their number, or -1 with an error. */
static Py_ssize_t measure(const Source *from, Py_ssize_t first, Py_ssize_t most, Py_ssize_t *total)
{
    Py_ssize_t number = 0, base = 0;
    int bad = 0, large = 0;
    *total = 0;
    Py_BEGIN_ALLOW_THREADS
    for (; number < most; number++) {
        Py_ssize_t row = row_at(from, first + number);
        if (row < 0 || row >= from->rows) {
            bad = 1;
            break;
        }
        if (!number) base = row;
        int64_t size = 1 + varint_size(delta_of(from->times, row, base)) + varint_size(number) +
                       row_size(&from->all, row);
        if (size > PY_SSIZE_T_MAX - VARINT_MAX - from->before - *total) {
            large = 1;
            break;
        }
        Py_ssize_t with = *total + varint_size(size) + (Py_ssize_t)size;
        if (number && with > from->room) break;
        from->sizes[number] = size;
        *total = with;
    }
    Py_END_ALLOW_THREADS
    if (bad)
        PyErr_SetString(PyExc_IndexError, "a place beyond the rows");
    else if (large && !number)
        PyErr_SetString(PyExc_OverflowError, "the record is too large");
    else
        return number;
    return -1;
}

/* A byte array of that size: a spare one, unless its bytes are in use somewhere, or a new one. */
static PyObject *body_of(PyObject *spare, Py_ssize_t size)
{
    if (PyByteArray_Check(spare)) {
        if (!PyByteArray_Resize(spare, size)) return Py_NewRef(spare);
        if (!PyErr_ExceptionMatches(PyExc_BufferError)) return NULL;
        PyErr_Clear();
    }
    return PyByteArray_FromStringAndSize(NULL, size);
}

static void put_records(char *out, const Source *from, Py_ssize_t first, Py_ssize_t number)
{
    memset(out, 0, (size_t)from->before);
    out += from->before;
    for (Py_ssize_t i = 0; i < number; i++) {
        Py_ssize_t row = row_at(from, first + i);
        out = put_varint(out, from->sizes[i]);
        *out++ = 0; /* no attributes */
        out = put_varint(out, delta_of(from->times, row, row_at(from, first)));
        out = put_varint(out, i);
        out = put_row(out, &from->all, row);
    }
}

/* Adds the next batch to the list; how many records it has, or -1 with an error. */
static Py_ssize_t add_batch(PyObject *list, const Source *from, Py_ssize_t first, Py_ssize_t most,
                            PyObject *spares)
{
    Py_ssize_t total, number = -1;
    /* Before the records are measured: what a caller's function does may change them. */
    PyObject *spare = spares == Py_None ? Py_NewRef(Py_None) : PyObject_CallNoArgs(spares);
    PyObject *body = NULL, *entry = NULL;
    if (spare) number = measure(from, first, most, &total);
    if (number >= 0) body = body_of(spare, from->before + total);
    if (body) {
        char *out = PyByteArray_AsString(body);
        Py_BEGIN_ALLOW_THREADS
        put_records(out, from, first, number);
        Py_END_ALLOW_THREADS
        entry = Py_BuildValue("Nn", body, number);
    }
    if (!entry || PyList_Append(list, entry)) number = -1;
    Py_XDECREF(entry);
    Py_XDECREF(spare);
    return number;
}

/* Whether times and places fit the rows; sets an error. */
static int sound_source(const Source *from, const Py_buffer *times)
{
    if (!aligned(from->places, sizeof(int64_t)) || !aligned(from->times, sizeof(int64_t)))
        PyErr_SetString(PyExc_ValueError, "the places or times are not aligned");
    else if (from->times && times->len / (Py_ssize_t)sizeof(int64_t) < from->rows)
        PyErr_SetString(PyExc_ValueError, "fewer times than rows");
    else if (from->before < 0 || from->before > INT32_MAX)
        PyErr_SetString(PyExc_ValueError, "no such room before the records");
    else
        return 1;
    return 0;
}

/* records(parts, rows, times, places, most, room, before, spares) -> [(buffer, number)]
 *
 * All rows, or those at places (int64), in batches: as many records as fit in room bytes, at least one
 * and at most `most`. times (int64) are the rows' timestamps, or None: all are the same. A buffer has
 * `before` bytes of zeros in front. `spares`, unless None, is called for each: a byte array whose
 * contents are of no more use, or None. */
static PyObject *records(PyObject *self, PyObject *arguments)
{
    PyObject *list, *stamps, *selected, *spares, *answer = NULL;
    Py_ssize_t most;
    Py_buffer view = {0}, times_view = {0};
    Source from = {0};
    if (!PyArg_ParseTuple(arguments, "OnOOnnnO", &list, &from.rows, &stamps, &selected, &most, &from.room,
                          &from.before, &spares))
        return NULL;
    if (view_of(stamps, &times_view) || view_of(selected, &view)) goto end;
    from.times = times_view.buf;
    from.places = view.buf;
    from.chosen = from.places ? view.len / (Py_ssize_t)sizeof(int64_t) : from.rows;
    if (read_parts(list, from.rows, &from.all) || !sound_source(&from, &times_view)) goto end;
    if (most > from.chosen) most = from.chosen;
    if (most < 1) most = 1;
    from.sizes = PyMem_Malloc((size_t)most * sizeof(int64_t));
    answer = from.sizes ? PyList_New(0) : PyErr_NoMemory();
    for (Py_ssize_t first = 0, number; answer && first < from.chosen; first += number) {
        Py_ssize_t left = from.chosen - first;
        number = add_batch(answer, &from, first, most < left ? most : left, spares);
        if (number < 0) Py_CLEAR(answer);
    }
end:
    PyMem_Free(from.sizes);
    if (times_view.obj) PyBuffer_Release(&times_view);
    if (view.obj) PyBuffer_Release(&view);
    if (from.all.parts) release(&from.all);
    return answer;
}

/* escapes(data) -> bool: whether JSON must escape any of these bytes: quote, backslash, control. */
static PyObject *escapes(PyObject *self, PyObject *data)
{
    Py_buffer view = {0};
    enum { AT_ONCE = 4096 };
    if (view_of(data, &view)) return NULL;
    const unsigned char *bytes = view.buf;
    int found = 0;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t at = 0; at < view.len && !found; at += AT_ONCE) {
        Py_ssize_t end = view.len - at < AT_ONCE ? view.len : at + AT_ONCE;
        unsigned char any = 0; /* without a branch, so that the compiler takes many bytes at a time */
        for (Py_ssize_t i = at; i < end; i++)
            any |= (unsigned char)((bytes[i] < 0x20) | (bytes[i] == '"') | (bytes[i] == '\\'));
        found = any;
    }
    Py_END_ALLOW_THREADS
    if (view.obj) PyBuffer_Release(&view);
    return PyBool_FromLong(found);
}

static uint32_t word_at(const unsigned char *bytes)
{
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

/* Kafka's own variant of murmur2: `Utils.murmur2` of its clients. */
static uint32_t murmur2_of(const unsigned char *key, Py_ssize_t size)
{
    const uint32_t m = 0x5BD1E995;
    uint32_t h = 0x9747B28C ^ (uint32_t)size;
    Py_ssize_t i = 0;
    for (; i + 4 <= size; i += 4) {
        uint32_t k = word_at(key + i) * m;
        k = (k ^ k >> 24) * m;
        h = (h * m) ^ k;
    }
    if (i < size) {
        uint32_t tail = 0;
        for (Py_ssize_t j = size - 1; j >= i; j--) tail = tail << 8 | key[j];
        h = (h ^ tail) * m;
    }
    h = (h ^ h >> 13) * m;
    return h ^ h >> 15;
}

/* murmur2(part, rows) -> uint32 of each value, a null as an empty one */
static PyObject *murmur2(PyObject *self, PyObject *arguments)
{
    PyObject *list, *answer = NULL;
    Py_ssize_t rows;
    Parts all = {0};
    if (!PyArg_ParseTuple(arguments, "On", &list, &rows)) return NULL;
    if (read_parts(list, rows, &all)) return NULL;
    if (all.count != 1 || all.parts[0].kind != RAW) {
        PyErr_SetString(PyExc_ValueError, "one array of keys is wanted");
        goto end;
    }
    answer = PyBytes_FromStringAndSize(NULL, rows * (Py_ssize_t)sizeof(uint32_t));
    if (!answer) goto end;
    uint32_t *hashes = (uint32_t *)PyBytes_AsString(answer);
    const Part *keys = &all.parts[0];
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t row = 0; row < rows; row++) {
        const int32_t *ends = keys->ends + keys->start + row;
        Py_ssize_t size = is_there(keys, row) ? ends[1] - ends[0] : 0;
        hashes[row] = murmur2_of((const unsigned char *)keys->data + (size ? ends[0] : 0), size);
    }
    Py_END_ALLOW_THREADS
end:
    release(&all);
    return answer;
}

static PyMethodDef functions[] = {
    {"escapes", escapes, METH_O, "escapes(data) -> bool"},
    {"join", join, METH_VARARGS, "join(parts, rows) -> (offsets, data)"},
    {"murmur2", murmur2, METH_VARARGS, "murmur2([part], rows) -> hashes"},
    {"records", records, METH_VARARGS,
     "records(parts, rows, times, places, most, room, before, spares) -> [(buffer, number)]"},
    {NULL, NULL, 0, NULL},
};

static int filled(PyObject *module)
{
    /* Raised with each change of what the functions take or give; see rowbytes.py. */
    return PyModule_AddIntConstant(module, "INTERFACE", 4) ? -1 : 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, filled}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_rowbytes", NULL, 0, functions, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__rowbytes(void) { return PyModuleDef_Init(&definition); }
