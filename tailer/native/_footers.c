/* Many small Parquet files as one: their bodies side by side, and one footer with all row groups.
 *
 * A reader then opens one file instead of hundreds. Only files whose footers are equal but for their
 * row groups are merged: the same schema, key-value metadata, writer and column orders, byte by byte.
 * In the row groups, the offsets of pages are moved to where the file's body lies. A column chunk must
 * lie within its own file's body, and have as many values as its pages say. Whatever is unusual ends
 * the merging, and the file is read by itself: it may well be sound.
 *
 * Footers are structs in Thrift's compact protocol; the numbers of fields are those of
 * parquet.thrift. Only the stable ABI of Python 3.11 is used, and nothing is kept of what is given.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "_thrift.h"

typedef struct {
    uint8_t *bytes;
    size_t size, room;
    int failed;
} Output;

typedef struct {
    const uint8_t *bytes;
    size_t size;
} Span;

/* The footer that is made: what is equal in all files, and the row groups so far. */
typedef struct {
    Span head, tail; /* before the number of rows, and behind the row groups */
    Output groups;
    uint64_t count;
    int64_t rows, bytes;
    int64_t largest; /* the size of the largest row group, not compressed */
    int64_t unpacked; /* of the pages of the present row group */
    int64_t base;    /* where the body of the present file begins */
    int64_t body;    /* its size */
    const uint8_t *file;
    Span (*columns)[2]; /* the type and the path of each column */
    uint64_t column_count;
} Merged;

static void put(Output *out, const void *bytes, size_t size)
{
    if (out->failed || !size) return; /* of nothing there may be no address */
    if (size > out->room - out->size) {
        size_t room = (out->size + size) * 2;
        uint8_t *grown = realloc(out->bytes, room);
        if (!grown) {
            out->failed = 1;
            return;
        }
        out->bytes = grown;
        out->room = room;
    }
    memcpy(out->bytes + out->size, bytes, size);
    out->size += size;
}

static void put_byte(Output *out, uint8_t byte) { put(out, &byte, 1); }

static void put_varint(Output *out, uint64_t value)
{
    uint8_t bytes[10];
    int size = 0;
    for (; value > 0x7F; value >>= 7) bytes[size++] = (uint8_t)(value & 0x7F) | 0x80;
    bytes[size++] = (uint8_t)value;
    put(out, bytes, (size_t)size);
}

/* A field of a struct, `step` numbers after the one before it. */
static void put_header(Output *out, int step, int wire)
{
    put_byte(out, (uint8_t)(step << 4 | wire));
}

static void put_number(Output *out, int step, int64_t value)
{
    put_header(out, step, I64);
    put_varint(out, (uint64_t)value << 1);
}

static void put_structs(Output *out, int step, uint64_t count)
{
    put_header(out, step, LIST);
    put_byte(out, (uint8_t)((count < 15 ? count : 15) << 4 | STRUCT));
    if (count >= 15) put_varint(out, count);
}

/* Whether the pages of a column chunk have this number of values together. A reader takes as many as
 * the pages say: with more of them, rows of the files behind this one would move. `unpacked` gets the
 * pages' size without compression, which the footer may understate. */
static int has_pages(const uint8_t *start, int64_t size, int64_t values, int64_t *unpacked)
{
    Input in = {start, start + size, 0};
    while (in.at < in.end && !in.bad) {
        int number = 0, wire;
        int64_t kind = -1, stored = -1;
        while (next_field(&in, &number, &wire)) {
            if (number == 1 && wire == I32) {
                kind = read_size(&in);
            } else if (number == 2 && wire == I32) {
                int64_t found = read_size(&in);
                if (found > INT32_MAX || *unpacked > INT64_MAX / 2) return 0;
                *unpacked += found;
            } else if (number == 3 && wire == I32) {
                stored = read_size(&in);
            } else if ((number == 5 || number == 8) && wire == STRUCT) { /* a page of values */
                int inner = 0;
                if (!next_field(&in, &inner, &wire) || inner != 1 || wire != I32) return 0;
                values -= read_size(&in);
                while (next_field(&in, &inner, &wire)) skip(&in, wire, 0);
                if (kind != (number == 5 ? 0 : 3)) return 0;
            } else {
                skip(&in, wire, 0);
            }
            if (in.bad || values < 0) return 0;
        }
        if ((kind != 0 && kind != 2 && kind != 3) || stored < 0) return 0;
        pass(&in, (uint64_t)stored);
    }
    return !in.bad && !values;
}

/* ColumnMetaData; returns the number of values, or -1 for a nested column. `column` is its type and
 * path, which must be those of the first file. */
static int64_t take_metadata(Input *in, Merged *merged, Span column[2])
{
    Output *out = &merged->groups;
    int number = 0, wire, before = 0, nested = 0;
    int64_t values = 0, size = 0, data = -1, dictionary = -1;
    while (next_field(in, &number, &wire)) {
        const uint8_t *start = in->at;
        if (number <= 7 && number != before + 1) break;
        put_header(out, number - before, wire);
        before = number;
        if (number >= 5 && number <= 11 && number != 8) { /* numbers and sizes, then places */
            if (wire != I64) in->bad = 1;
            int64_t found = read_size(in);
            if (number == 5) values = found;
            if (number == 7) size = found;
            if (number == 9) data = found;
            if (number == 11) dictionary = found;
            if (found > INT64_MAX / 4) in->bad = 1;
            put_varint(out, (uint64_t)(number > 7 ? merged->base + found : found) << 1);
        } else {
            skip(in, wire, 0);
            Span raw = {start, (size_t)(in->at - start)};
            if (number == 1 || number == 3) {
                Span *same = &column[number == 3];
                if (!same->bytes) *same = raw;
                if (raw.size != same->size || memcmp(raw.bytes, same->bytes, raw.size)) in->bad = 1;
            }
            if (number == 3) nested = wire != LIST || in->bad || *start >> 4 != 1;
            put(out, start, raw.size);
        }
        if (in->bad) return -1;
    }
    int64_t first = dictionary >= 0 && dictionary < data ? dictionary : data;
    if (before < 9 || data < 0 || !dictionary || first > merged->body || size > merged->body - first) {
        in->bad = 1;
    } else if (!has_pages(merged->file + first, size, values, &merged->unpacked)) {
        in->bad = 1;
    }
    put_byte(out, STOP);
    return nested ? -1 : values;
}

/* ColumnChunk; returns what take_metadata does. */
static int64_t take_chunk(Input *in, Merged *merged, Span column[2])
{
    Output *out = &merged->groups;
    int number = 0, wire, before = 0, found = 0;
    int64_t values = -1;
    while (next_field(in, &number, &wire)) {
        const uint8_t *start = in->at;
        put_header(out, number - before, wire);
        before = number;
        if (number == 3 && wire == STRUCT) {
            values = take_metadata(in, merged, column);
            found = 1;
        } else if (number == 1 || number == 3 || number >= 8) { /* in another file, or encrypted */
            in->bad = 1;
        } else {
            skip(in, wire, 0);
            put(out, start, (size_t)(in->at - start));
        }
        if (in->bad) return -1;
    }
    if (!found) in->bad = 1;
    put_byte(out, STOP);
    return values;
}

/* RowGroup; returns its number of rows. */
static int64_t take_group(Input *in, Merged *merged)
{
    Output *out = &merged->groups;
    int number = 0, wire, items, before = 3;
    int64_t flat = -1, size = 0, rows = 0;
    if (!next_field(in, &number, &wire) || number != 1 || wire != LIST) goto bad;
    uint64_t count = read_list(in, &items);
    if (items != STRUCT) goto bad;
    if (!merged->columns) {
        merged->columns = calloc(count + 1, sizeof(*merged->columns));
        merged->column_count = count;
        if (!merged->columns) out->failed = 1;
    }
    if (out->failed || count != merged->column_count) goto bad;
    put_structs(out, 1, count);
    merged->unpacked = 0;
    for (uint64_t i = 0; i < count && !in->bad; i++) {
        int64_t values = take_chunk(in, merged, merged->columns[i]);
        if (values >= 0 && flat >= 0 && values != flat) goto bad;
        if (values >= 0) flat = values;
    }
    if (in->bad || !next_field(in, &number, &wire) || number != 2 || wire != I64) goto bad;
    size = read_size(in);
    if (!next_field(in, &number, &wire) || number != 3 || wire != I64) goto bad;
    rows = read_size(in);
    put_number(out, 1, size);
    put_number(out, 1, rows);
    while (next_field(in, &number, &wire)) {
        const uint8_t *start = in->at;
        put_header(out, number - before, wire);
        before = number;
        skip(in, wire, 0);
        put(out, start, (size_t)(in->at - start));
    }
    if (in->bad || (flat >= 0 && flat != rows)) goto bad;
    if (size < merged->unpacked) size = merged->unpacked;
    if (size > INT64_MAX - merged->bytes || rows > INT64_MAX - merged->rows) goto bad;
    put_byte(out, STOP);
    merged->bytes += size;
    if (size > merged->largest) merged->largest = size;
    merged->rows += rows;
    merged->count++;
    return rows;
bad:
    in->bad = 1;
    return 0;
}

static int is_equal(Span span, const uint8_t *bytes, const uint8_t *end)
{
    return span.size <= (size_t)(end - bytes) && !memcmp(span.bytes, bytes, span.size);
}

/* Forget what was added since; memory stays. */
static void back_to(Merged *merged, const Merged *before)
{
    Output groups = merged->groups;
    Span(*columns)[2] = merged->columns;
    uint64_t column_count = merged->column_count;
    groups.size = before->groups.size;
    *merged = *before;
    merged->groups = groups;
    merged->columns = columns;
    merged->column_count = column_count;
}

/* Add a file; returns its number of rows, or -1: it differs, and nothing was added. */
static int64_t take_file(Merged *merged, const uint8_t *file, size_t size)
{
    Merged before = *merged;
    int first = !merged->head.bytes, number = 0, wire;
    int64_t rows = 0;
    if (size < FOOTER_END || memcmp(file + size - 4, "PAR1", 4)) return -1;
    const uint8_t *end = file + size - FOOTER_END;
    size_t length = end[0] | (size_t)end[1] << 8 | (size_t)end[2] << 16 | (size_t)end[3] << 24;
    if (length > size - FOOTER_END) return -1;
    const uint8_t *footer = end - length;
    Input in = {footer, end, 0};
    merged->body = footer - file;
    merged->file = file;
    if (first) { /* the version and the schema */
        for (int field = 1; field <= 2; field++) {
            if (!next_field(&in, &number, &wire) || number != field) return -1;
            skip(&in, wire, 0);
        }
        if (in.bad) return -1;
        merged->head = (Span){footer, (size_t)(in.at - footer)};
    } else if (is_equal(merged->head, footer, end)) {
        in.at += merged->head.size;
        number = 2;
    } else {
        goto differs;
    }
    if (!next_field(&in, &number, &wire) || number != 3 || wire != I64) goto differs;
    int64_t all = read_size(&in);
    if (!next_field(&in, &number, &wire) || number != 4 || wire != LIST) goto differs;
    uint64_t count = read_list(&in, &wire);
    if (count > 1 || (count && wire != STRUCT)) goto differs;
    if (count) rows = take_group(&in, merged);
    if (in.bad || rows != all || merged->groups.failed) goto differs;
    if (first) {
        merged->tail = (Span){in.at, (size_t)(end - in.at)};
    } else if (merged->tail.size != (size_t)(end - in.at) || !is_equal(merged->tail, in.at, end)) {
        goto differs;
    }
    merged->base += merged->body;
    return rows;
differs:
    back_to(merged, &before);
    return -1;
}

/* Write the merged footer behind the bodies. */
static void put_footer(Output *out, const Merged *merged)
{
    put(out, merged->head.bytes, merged->head.size);
    put_number(out, 1, merged->rows);
    put_structs(out, 1, merged->count);
    put(out, merged->groups.bytes, merged->groups.size);
    put(out, merged->tail.bytes, merged->tail.size);
    uint8_t end[FOOTER_END];
    for (int i = 0; i < 4; i++) end[i] = (uint8_t)(out->size >> 8 * i);
    memcpy(end + 4, "PAR1", 4);
    put(out, end, FOOTER_END);
}

/* Take files while they fit; returns how many, and their rows in `rows`. */
static Py_ssize_t take_files(
    Merged *merged, const Py_buffer *files, Py_ssize_t count, int64_t *rows, int64_t rows_max,
    int64_t bytes_max)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        Merged before = *merged;
        rows[i] = take_file(merged, files[i].buf, (size_t)files[i].len);
        if (rows[i] < 0) return i;
        if (merged->rows > rows_max || merged->bytes > bytes_max) {
            back_to(merged, &before);
            return i;
        }
    }
    return count;
}

static PyObject *list_of(const int64_t *numbers, Py_ssize_t count)
{
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list && i < count; i++) {
        PyObject *number = PyLong_FromLongLong(numbers[i]);
        if (!number || PyList_SetItem(list, i, number)) Py_CLEAR(list);
    }
    return list;
}

/* merge(files, rows_max, bytes_max) -> (file, rows, largest) */
static PyObject *merge(PyObject *self, PyObject *arguments)
{
    PyObject *given, *file = NULL, *answer = NULL;
    long long rows_max, bytes_max;
    if (!PyArg_ParseTuple(arguments, "O!LL", &PyList_Type, &given, &rows_max, &bytes_max)) return NULL;
    Py_ssize_t count = PyList_Size(given), held = 0, taken = 0;
    Py_buffer *files = calloc((size_t)count + 1, sizeof(Py_buffer));
    int64_t *rows = calloc((size_t)count + 1, sizeof(int64_t));
    Merged merged = {0};
    Output footer = {0};
    if (!files || !rows) {
        PyErr_NoMemory();
        goto end;
    }
    for (; held < count; held++) {
        PyObject *one = PyList_GetItem(given, held);
        if (!one || PyObject_GetBuffer(one, &files[held], PyBUF_SIMPLE)) goto end;
    }
    Py_BEGIN_ALLOW_THREADS
    taken = take_files(&merged, files, count, rows, rows_max, bytes_max);
    if (taken) put_footer(&footer, &merged);
    Py_END_ALLOW_THREADS
    if (footer.failed || merged.groups.failed) {
        PyErr_NoMemory();
        goto end;
    }
    file = PyBytes_FromStringAndSize(NULL, taken ? (Py_ssize_t)(merged.base + footer.size) : 0);
    if (!file) goto end;
    uint8_t *at = (uint8_t *)PyBytes_AsString(file);
    for (Py_ssize_t i = 0; i < taken; i++) {
        const uint8_t *end = (const uint8_t *)files[i].buf + files[i].len - FOOTER_END;
        size_t length = end[0] | (size_t)end[1] << 8 | (size_t)end[2] << 16 | (size_t)end[3] << 24;
        size_t body = (size_t)files[i].len - FOOTER_END - length;
        memcpy(at, files[i].buf, body);
        at += body;
    }
    if (taken) memcpy(at, footer.bytes, footer.size);
    PyObject *numbers = list_of(rows, taken);
    if (numbers) {
        answer = Py_BuildValue("(NNL)", file, numbers, (long long)merged.largest);
        file = NULL;
    }
end:
    Py_XDECREF(file);
    while (held) PyBuffer_Release(&files[--held]);
    free(files);
    free(rows);
    free(merged.columns);
    free(merged.groups.bytes);
    free(footer.bytes);
    return answer;
}

static PyMethodDef functions[] = {
    {"merge", merge, METH_VARARGS, "merge(files, rows_max, bytes_max) -> (file, rows, largest)"},
    {NULL, NULL, 0, NULL},
};

static int filled(PyObject *module)
{
    /* Raised with each change of what the function takes or gives; see decode/small_files.py. */
    return PyModule_AddIntConstant(module, "INTERFACE", 1) ? -1 : 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, filled}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_footers", NULL, 0, functions, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__footers(void) { return PyModuleDef_Init(&definition); }
