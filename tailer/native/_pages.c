/* Flat Parquet columns, decoded page by page into the buffers of Arrow arrays.
 *
 * `groups` reads from a footer where its row groups' columns are. A `Column` decodes one of them: `run`
 * goes on with several columns, without the interpreter's lock, until each has the rows of a batch or
 * needs something that only Python has: more of the chunk's bytes, room, a page unpacked by a codec that
 * is not known here. Of each column there is one unpacked page in memory, and its dictionary.
 *
 * Whatever is unusual is odd, and another reader judges: it may well be sound. All that a file claims
 * is checked against the bytes that are given. Numbers of fields and enums are those of parquet.thrift.
 * Only the stable ABI of Python 3.11 is used.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "_crc32.h"
#include "_snappy.h"
#include "_thrift.h"
#include "_values.h"

enum { PLAIN = 0, PLAIN_DICTIONARY = 2, RLE = 3, RLE_DICTIONARY = 8 };
enum { DATA_PAGE = 0, DICTIONARY_PAGE = 2, DATA_PAGE_V2 = 3 };
enum { NO_CODEC = 0, SNAPPY = 1 };
/* What a column needs to go on; `ANOTHER` is another reader. See decode/pages.py. */
enum { NOTHING, BYTES, ROOM, UNPACKED, ANOTHER };
/* A header is shorter, unless its statistics are long; a larger page is odd: damage claims any size. */
enum { HEADER_BYTES = 256 * 1024, PAGE_BYTES_MAX = 64 * 1024 * 1024 };

/* What a page's header says; numbers that it lacks are -1. `checksum` is that of the stored bytes. */
typedef struct {
    int64_t kind, unpacked, stored, values, encoding, levels, nested_size, levels_size, is_packed;
    int64_t checksum;
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

/* Read a page's header; returns its size in bytes, 0 if it is odd, or not whole. The two numbers of a
 * dictionary's header are where those of a first-version page are. */
static int64_t read_header(Bytes given, Header *found)
{
    Input in = {given.bytes, given.bytes + given.size, 0};
    int number = 0, wire, last = STRUCT;
    *found = (Header){-1, -1, -1, -1, -1, -1, 0, 0, 1, -1};
    while (next_field(&in, &number, &wire)) {
        if (number <= 3 && wire == I32) {
            int64_t value = read_size(&in);
            *(number == 1 ? &found->kind : number == 2 ? &found->unpacked : &found->stored) = value;
        } else if (number == 4 && wire == I32) { /* a signed number for an unsigned one */
            uint64_t zigzag = read_varint(&in);
            found->checksum = (uint32_t)(zigzag >> 1) ^ (uint32_t)(0 - (zigzag & 1));
        } else if (wire == STRUCT && (number == 5 || number == 7 || number == 8)) {
            read_values_header(&in, found, number == 8 ? 2 : number == 5 ? 1 : 0);
            last = number;
        } else {
            skip(&in, wire, 0);
        }
    }
    int is_right = (found->kind == DATA_PAGE && last == 5) ||
                   (found->kind == DICTIONARY_PAGE && last == 7) ||
                   (found->kind == DATA_PAGE_V2 && last == 8);
    if (in.bad || !is_right || found->unpacked < 0 || found->stored < 0 || found->values < 0 ||
        found->encoding < 0 || found->nested_size)
        return 0;
    return in.at - given.bytes;
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

/* RowGroup -> (rows, bytes, chunks); NULL if it is odd. */
static PyObject *read_group(Input *in)
{
    int number = 0, wire, items;
    int64_t bytes = -1, rows = -1;
    if (!next_field(in, &number, &wire) || number != 1 || wire != LIST) return NULL;
    uint64_t count = read_list(in, &items);
    if (in->bad || items != STRUCT) return NULL;
    PyObject *chunks = PyList_New(0);
    for (uint64_t i = 0; chunks && i < count; i++) {
        PyObject *chunk = read_chunk(in);
        if (!chunk || PyList_Append(chunks, chunk)) Py_CLEAR(chunks);
        Py_XDECREF(chunk);
    }
    if (!chunks) return NULL;
    while (next_field(in, &number, &wire)) {
        if (wire == I64 && (number == 2 || number == 3)) {
            *(number == 2 ? &bytes : &rows) = read_size(in);
        } else {
            skip(in, wire, 0);
        }
    }
    if (in->bad || bytes < 0 || rows < 0) Py_CLEAR(chunks);
    return chunks ? Py_BuildValue("(LLN)", (long long)rows, (long long)bytes, chunks) : NULL;
}

/* groups(footer) -> the row groups; None if one of them is odd. */
static PyObject *groups(PyObject *self, PyObject *footer)
{
    Py_buffer given;
    int number = 0, wire;
    PyObject *answer = NULL;
    if (PyObject_GetBuffer(footer, &given, PyBUF_SIMPLE)) return NULL;
    const uint8_t *start = given.buf;
    Input in = {start, start + given.len, 0};
    while (next_field(&in, &number, &wire)) {
        if (number != 4 || wire != LIST) {
            skip(&in, wire, 0);
            continue;
        }
        uint64_t count = read_list(&in, &wire);
        if (in.bad || (count && wire != STRUCT)) break;
        answer = PyList_New(0);
        for (; answer && count; count--) {
            PyObject *group = read_group(&in);
            if (!group || PyList_Append(answer, group)) Py_CLEAR(answer);
            Py_XDECREF(group);
        }
        break;
    }
    PyBuffer_Release(&given);
    if (!answer && !PyErr_Occurred()) Py_RETURN_NONE;
    return answer;
}

/* --- a column --- */

/* Memory of a column: the chunk's bytes, a page, the dictionary and the ends of its texts. */
enum { WINDOW, PAGE, DICTIONARY, ENDS, KINDS };
typedef struct {
    uint8_t *bytes;
    int64_t size;
} Memory;

/* The module's: memory of columns that are no more, for the next ones. To get it from the system anew
 * for each file takes as long as to decode half of the columns. */
enum { KEPT_MAX = 32, KEPT_BYTES_MAX = 16 * 1024 * 1024 };
typedef struct {
    PyTypeObject *type;
    Crc32 crc32;
    Memory kept[KINDS][KEPT_MAX];
    int count[KINDS];
    int64_t size;
} Module;

typedef struct {
    PyObject_HEAD
    Page page;
    Module *module; /* NULL: checksums are not looked at */
    int codec, is_running, need, has_dictionary, is_given;
    int64_t needed;            /* how many bytes */
    int64_t rows, size;        /* that no page has given yet; of the chunk */
    int64_t at;                /* where the next page is in the chunk */
    int64_t window_at, there;  /* the place of the window in the chunk, and its bytes */
    Header header;             /* of the last page that was found, */
    Bytes stored;              /* and its bytes; */
    Bytes packed;              /* those that Python unpacks, */
    Py_buffer unpacked;        /* and what it gives for them */
    Memory memory[KINDS];
    Py_buffer validity, offsets, out; /* of the array, which gets `wanted` rows and has `done` */
    int64_t wanted, done;
    int is_measured; /* rather than taken */
} Column;

static int has_room(Column *column, int kind, int64_t size)
{
    Memory *memory = &column->memory[kind];
    if (memory->size >= size) return 1;
    free(memory->bytes);
    memory->bytes = malloc((size_t)size);
    memory->size = memory->bytes ? size : 0;
    return memory->bytes != NULL;
}

/* Put texts that lie behind their sizes side by side, and where they begin and end into `ends`. */
static int split_texts(Bytes in, int64_t count, uint8_t *to, int32_t *ends)
{
    int64_t at = 0;
    int32_t used = 0;
    ends[0] = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t size;
        if (in.size - at < 4) return 0;
        memcpy(&size, in.bytes + at, 4);
        if (size > (uint64_t)(in.size - at - 4)) return 0;
        if (size) memcpy(to + used, in.bytes + at + 4, size);
        used += (int32_t)size;
        at += 4 + size;
        ends[i + 1] = used;
    }
    memset(to + used, 0, (size_t)(in.size - used) + SLACK);
    return 1;
}

/* Prepare a dictionary page's values for copying them. */
static int begin_dictionary(Column *column, Bytes in)
{
    Page *page = &column->page;
    int64_t count = column->header.values, encoding = column->header.encoding;
    int is_text = page->form == TEXT || page->form == CODE;
    int64_t each = is_text ? 4 : page->length; /* the least that a value takes */
    if (column->has_dictionary || (encoding != PLAIN && encoding != PLAIN_DICTIONARY)) return 0;
    if (count > in.size / each) return 0;
    int64_t size = is_text ? in.size + SLACK : count * size_of(page->form);
    if (!has_room(column, DICTIONARY, size + 1)) return 0;
    uint8_t *values = column->memory[DICTIONARY].bytes;
    if (is_text) {
        if (!has_room(column, ENDS, (count + 1) * 4)) return 0;
        int32_t *ends = (int32_t *)column->memory[ENDS].bytes;
        if (!split_texts(in, count, values, ends)) return 0;
        page->ends = ends;
    } else if (count) {
        convert(page->form, page->length, in.bytes, values, count);
    }
    page->dictionary = (Bytes){values, size};
    page->entries = count;
    column->has_dictionary = 1;
    return 1;
}

/* Begin a page of values, which are unpacked; so are its levels, unless they were given apart. */
static int begin_page(Column *column, Bytes levels, Bytes values)
{
    Page *page = &column->page;
    const Header *header = &column->header;
    int64_t encoding = header->encoding;
    page->is_coded = encoding == PLAIN_DICTIONARY || encoding == RLE_DICTIONARY;
    if (!page->is_coded && encoding != PLAIN) return 0;
    if (page->is_coded && !column->has_dictionary) return 0;
    if (header->values > column->rows) return 0;
    if (header->kind == DATA_PAGE && page->is_nullable) {
        uint32_t size;
        if (values.size < 4 || header->levels != RLE) return 0;
        memcpy(&size, values.bytes, 4);
        if (size > (uint64_t)(values.size - 4)) return 0;
        levels = (Bytes){values.bytes + 4, size};
        values = (Bytes){values.bytes + 4 + size, values.size - 4 - size};
    }
    page->levels = levels;
    page->values = values;
    page->levels_at = (Runs){0, 0, 0, 0};
    page->places_at = (Runs){1, 0, 0, 0}; /* behind the width */
    page->value_at = page->width = 0;
    if (page->is_coded && values.size) page->width = values.bytes[0]; /* nulls alone need none */
    if (page->width > 32) return 0;
    column->rows -= header->values;
    page->rows = header->values;
    return 1;
}

/* Unpack the page that was found. Returns what is needed for it. */
static int open_page(Column *column)
{
    const Header *header = &column->header;
    Bytes levels = {NULL, 0}, stored = column->stored;
    int64_t size = header->unpacked;
    if (header->kind == DATA_PAGE_V2) { /* its levels are never packed */
        levels = (Bytes){stored.bytes, header->levels_size};
        stored = (Bytes){stored.bytes + levels.size, stored.size - levels.size};
        size -= levels.size;
        if (stored.size < 0 || size < 0 || (levels.size && !column->page.is_nullable)) return ANOTHER;
    }
    if (!size) {
        stored.size = 0;
    } else if (column->codec == NO_CODEC || (header->kind == DATA_PAGE_V2 && !header->is_packed)) {
        if (stored.size != size) return ANOTHER;
    } else if (column->codec == SNAPPY) {
        if (!has_room(column, PAGE, size)) return ANOTHER;
        uint8_t *page = column->memory[PAGE].bytes;
        if (!snappy_unpack(stored.bytes, stored.size, page, size)) return ANOTHER;
        stored = (Bytes){page, size};
    } else if (!column->is_given) {
        column->packed = stored;
        column->needed = size;
        return UNPACKED;
    } else {
        stored = (Bytes){column->unpacked.buf, size};
        column->is_given = 0;
    }
    if (header->kind == DICTIONARY_PAGE) return begin_dictionary(column, stored) ? NOTHING : ANOTHER;
    return begin_page(column, levels, stored) ? NOTHING : ANOTHER;
}

/* Find the next page. Returns what is needed to go on with it. */
static int find_page(Column *column)
{
    int64_t left = column->size - column->at;
    int64_t there = column->there - (column->at - column->window_at);
    const uint8_t *start = column->memory[WINDOW].bytes + (column->at - column->window_at);
    if (!column->rows || !left) return ANOTHER;
    int64_t size = there ? read_header((Bytes){start, there}, &column->header) : 0;
    column->needed = size ? size + column->header.stored : least(HEADER_BYTES, left);
    if (size && (column->header.stored > PAGE_BYTES_MAX || column->header.unpacked > PAGE_BYTES_MAX))
        return ANOTHER;
    if (column->needed > left) return ANOTHER;
    if (column->needed > there) return BYTES;
    if (!size) return ANOTHER;
    column->stored = (Bytes){start + size, column->header.stored};
    if (column->module && column->header.checksum >= 0 &&
        column->header.checksum !=
            crc32_of(&column->module->crc32, column->stored.bytes, column->stored.size))
        return ANOTHER;
    column->at += column->needed;
    return NOTHING;
}

/* Decode rows until there are enough. Returns what is needed to go on. */
static int advance(Column *column)
{
    Page *page = &column->page;
    while (column->done < column->wanted) {
        if (!page->rows) {
            int need = column->need == UNPACKED ? NOTHING : find_page(column);
            if (need == NOTHING) need = open_page(column);
            if (need != NOTHING) return need;
            column->need = NOTHING;
        }
        if (column->is_measured && page->rows) {
            column->wanted = least(least(column->wanted, page->rows), BLOCK);
            page->used = measure(page, column->wanted);
            return page->used < 0 ? ANOTHER : NOTHING;
        }
        int64_t count = take_rows(page, column->done, column->wanted - column->done);
        if (count < 0) return ANOTHER;
        column->done += count;
        if (page->rows && column->done < column->wanted) {
            column->needed = page->used;
            return ROOM;
        }
    }
    return NOTHING;
}

/* --- what Python calls --- */

static int is_idle(Column *column)
{
    if (!column->is_running) return 1;
    PyErr_SetString(PyExc_RuntimeError, "the column is being decoded");
    return 0;
}

/* Take a buffer in place of another one; None is none. */
static int replace(Py_buffer *old, PyObject *given, int flags)
{
    Py_buffer found = {0};
    if (given != Py_None && PyObject_GetBuffer(given, &found, flags)) return 0;
    PyBuffer_Release(old);
    *old = found;
    return 1;
}

static void release_array(Column *column)
{
    column->is_measured = 0;
    PyBuffer_Release(&column->validity);
    PyBuffer_Release(&column->offsets);
    PyBuffer_Release(&column->out);
    column->done = 0;
}

static PyObject *invalid(void)
{
    PyErr_SetString(PyExc_ValueError, "a buffer is too small, or a number is out of range");
    return NULL;
}

/* Take the memory that was kept first: it is most likely to be the same column's in the file before. */
static void take_kept(Module *module, Column *column)
{
    for (int kind = 0; module && kind < KINDS; kind++) {
        Memory *kept = module->kept[kind];
        if (!module->count[kind]) continue;
        column->memory[kind] = kept[0];
        module->size -= kept[0].size;
        memmove(kept, kept + 1, (size_t)--module->count[kind] * sizeof(*kept));
    }
}

static void keep(Module *module, Column *column)
{
    for (int kind = 0; kind < KINDS; kind++) {
        Memory memory = column->memory[kind];
        if (module && memory.bytes && module->count[kind] < KEPT_MAX &&
            memory.size <= KEPT_BYTES_MAX - module->size) {
            module->kept[kind][module->count[kind]++] = memory;
            module->size += memory.size;
        } else {
            free(memory.bytes);
        }
    }
}

/* Column(form, length, is_nullable, codec, rows, size, is_checked): a column chunk of these rows and
 * bytes, whose pages' checksums are looked at. */
static PyObject *new_column(PyTypeObject *type, PyObject *arguments, PyObject *names)
{
    int form, is_nullable, codec, is_checked;
    long long length, rows, size;
    if (names || !PyArg_ParseTuple(
                     arguments, "iLpiLLp", &form, &length, &is_nullable, &codec, &rows, &size,
                     &is_checked))
        return names ? invalid() : NULL;
    if (!is_form(form, length) || rows < 0 || size < 0) return invalid();
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Column *column = (Column *)allocate(type, 0); /* all of it is zero */
    if (!column) return NULL;
    column->page.form = form;
    column->page.length = length;
    column->page.is_nullable = is_nullable;
    column->codec = codec;
    column->rows = rows;
    column->size = size;
    Module *module = PyType_GetModuleState(type);
    column->module = is_checked ? module : NULL;
    take_kept(module, column);
    return (PyObject *)column;
}

static void free_column(PyObject *self)
{
    Column *column = (Column *)self;
    PyTypeObject *type = Py_TYPE(self);
    release_array(column);
    PyBuffer_Release(&column->unpacked);
    keep(PyType_GetModuleState(type), column);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* begin(rows, validity, offsets, out): the next rows go to these buffers of an array, of which the
 * column may lack the first two. Without `out`, texts are measured: how many rows, up to these. */
static PyObject *begin(PyObject *self, PyObject *arguments)
{
    Column *column = (Column *)self;
    Page *page = &column->page;
    PyObject *validity, *offsets, *out;
    long long rows;
    if (!PyArg_ParseTuple(arguments, "LOOO", &rows, &validity, &offsets, &out)) return NULL;
    if (!is_idle(column)) return NULL;
    release_array(column);
    if (!replace(&column->validity, validity, PyBUF_WRITABLE) ||
        !replace(&column->offsets, offsets, PyBUF_WRITABLE) ||
        !replace(&column->out, out, PyBUF_WRITABLE))
        return NULL;
    int is_text = page->form == TEXT;
    column->is_measured = is_text && out == Py_None && rows > 0;
    if (column->is_measured) {
        column->wanted = rows;
        Py_RETURN_NONE;
    }
    if (rows < 0 || rows > INT32_MAX || !column->out.buf ||
        (page->is_nullable && column->validity.len < (rows + 7) / 8) ||
        (is_text && (column->offsets.len < (rows + 1) * 4 || (uintptr_t)column->offsets.buf % 4)) ||
        (!is_text && column->out.len < rows * size_of(page->form))) {
        release_array(column);
        return invalid();
    }
    page->validity = column->validity.buf;
    page->offsets = column->offsets.buf;
    page->out = column->out.buf;
    page->room = column->out.len;
    page->used = page->nulls = 0;
    if (page->is_nullable) memset(page->validity, 0xFF, (size_t)column->validity.len);
    if (is_text) page->offsets[0] = 0;
    column->wanted = rows;
    Py_RETURN_NONE;
}

/* grow(out): the texts' buffer has been resized. */
static PyObject *grow(PyObject *self, PyObject *out)
{
    Column *column = (Column *)self;
    if (!is_idle(column) || !replace(&column->out, out, PyBUF_WRITABLE)) return NULL;
    column->page.out = column->out.buf;
    column->page.room = column->out.len;
    if (column->out.len >= column->page.used) Py_RETURN_NONE;
    release_array(column);
    return invalid();
}

/* window(size) -> memory for the chunk's next bytes, so that `size` bytes of the next page on are there,
 * or all that are left; it is not to be used after `filled`. */
static PyObject *window(PyObject *self, PyObject *argument)
{
    Column *column = (Column *)self;
    long long wanted = PyLong_AsLongLong(argument);
    if (PyErr_Occurred() || !is_idle(column)) return NULL;
    int64_t passed = column->at - column->window_at, there = column->there - passed;
    int64_t size = least(wanted, column->size - column->at);
    if (column->need != BYTES || size < column->needed) return invalid();
    Memory *memory = &column->memory[WINDOW];
    if (memory->size < size) {
        uint8_t *bytes = malloc((size_t)size);
        if (!bytes) return PyErr_NoMemory();
        if (there) memcpy(bytes, memory->bytes + passed, (size_t)there);
        free(memory->bytes);
        *memory = (Memory){bytes, size};
    } else if (there) {
        memmove(memory->bytes, memory->bytes + passed, (size_t)there);
    }
    column->window_at = column->at;
    column->there = there;
    return PyMemoryView_FromMemory((char *)memory->bytes + there, size - there, PyBUF_WRITE);
}

/* filled(size): so many bytes have been read into the window. */
static PyObject *filled(PyObject *self, PyObject *argument)
{
    Column *column = (Column *)self;
    long long size = PyLong_AsLongLong(argument);
    if (PyErr_Occurred() || !is_idle(column)) return NULL;
    if (column->need != BYTES || size < 0 || column->window_at != column->at ||
        size > least(column->memory[WINDOW].size, column->size - column->at) - column->there)
        return invalid();
    column->there += size;
    if (column->there >= column->needed) Py_RETURN_NONE;
    column->need = ANOTHER;
    Py_RETURN_NONE;
}

/* give(page): the unpacked page that is needed. */
static PyObject *give(PyObject *self, PyObject *unpacked)
{
    Column *column = (Column *)self;
    if (!is_idle(column)) return NULL;
    if (column->need != UNPACKED || column->is_given) return invalid();
    if (!replace(&column->unpacked, unpacked, PyBUF_SIMPLE)) return NULL;
    column->is_given = column->unpacked.buf && column->unpacked.len == column->needed;
    if (!column->is_given) return invalid();
    Py_RETURN_NONE;
}

/* cut(): the array is given the rows that found room, of which there are some, and no more. */
static PyObject *cut(PyObject *self, PyObject *nothing)
{
    Column *column = (Column *)self;
    if (!is_idle(column)) return NULL;
    if (column->need != ROOM || !column->done) return invalid();
    column->need = NOTHING;
    column->wanted = column->done;
    release_array(column);
    Py_RETURN_NONE;
}

/* longest(texts) -> the size of the longest of texts that lie behind their sizes, up to the first that is
 * cut short. */
static PyObject *longest(PyObject *module, PyObject *texts)
{
    Py_buffer given;
    uint32_t most = 0, size;
    if (PyObject_GetBuffer(texts, &given, PyBUF_SIMPLE)) return NULL;
    const uint8_t *at = given.buf, *end = at + given.len;
    while (end - at >= 4) {
        memcpy(&size, at, 4);
        if (size > (uint64_t)(end - at - 4)) break;
        if (size > most) most = size;
        at += 4 + (int64_t)size;
    }
    PyBuffer_Release(&given);
    return PyLong_FromUnsignedLong(most);
}

/* page_sizes(bytes) -> [(kind, unpacked, stored, header), ...] of the pages that begin there, until one
 * of them is not whole, or odd. */
static PyObject *page_sizes(PyObject *module, PyObject *bytes)
{
    Py_buffer given;
    Header found;
    if (PyObject_GetBuffer(bytes, &given, PyBUF_SIMPLE)) return NULL;
    PyObject *pages = PyList_New(0);
    const uint8_t *at = given.buf, *end = at + given.len;
    while (pages && at < end) {
        int64_t size = read_header((Bytes){at, end - at}, &found);
        if (!size) break;
        PyObject *page = Py_BuildValue(
            "(LLLL)", (long long)found.kind, (long long)found.unpacked, (long long)found.stored,
            (long long)size);
        if (!page || PyList_Append(pages, page)) Py_CLEAR(pages);
        Py_XDECREF(page);
        if (found.stored > end - at - size) break;
        at += size + found.stored;
    }
    PyBuffer_Release(&given);
    return pages;
}

/* state() -> (need, needed, used, nulls, rows, done): what is needed, and how many bytes; the bytes of
 * texts and the number of nulls in the array; how many rows were wanted, or measured; and of these, how
 * many are there while more is needed. */
static PyObject *state(PyObject *self, PyObject *nothing)
{
    const Column *column = (Column *)self;
    return Py_BuildValue(
        "(iLLLLL)", column->need, (long long)column->needed, (long long)column->page.used,
        (long long)column->page.nulls, (long long)column->wanted, (long long)column->done);
}

/* packed() -> the page that is to be unpacked, as it is stored. */
static PyObject *packed(PyObject *self, PyObject *nothing)
{
    const Column *column = (Column *)self;
    if (column->need != UNPACKED) return invalid();
    return PyBytes_FromStringAndSize((const char *)column->packed.bytes, column->packed.size);
}

/* dictionary() -> (texts, ends): the texts of the dictionary, and where each begins, and the last one
 * ends; None if there is none. */
static PyObject *dictionary(PyObject *self, PyObject *nothing)
{
    const Column *column = (Column *)self;
    const Page *page = &column->page;
    if (!page->ends || !is_idle((Column *)self)) return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    return Py_BuildValue(
        "(y#y#)", (const char *)page->dictionary.bytes, (Py_ssize_t)page->ends[page->entries],
        (const char *)page->ends, (Py_ssize_t)(page->entries + 1) * 4);
}

/* run(columns): go on with each of these columns, which are a tuple, as far as it gets. */
static PyObject *run(PyObject *module, PyObject *columns)
{
    PyTypeObject *type = ((Module *)PyModule_GetState(module))->type;
    Py_ssize_t count = PyTuple_Size(columns), started = 0;
    if (count < 0) return NULL;
    Column **all = calloc((size_t)count + 1, sizeof(Column *));
    if (!all) return PyErr_NoMemory();
    for (; started < count; started++) {
        all[started] = (Column *)PyTuple_GetItem(columns, started);
        if (!PyObject_TypeCheck((PyObject *)all[started], type)) {
            PyErr_SetString(PyExc_TypeError, "not a column");
            break;
        }
        if (!is_idle(all[started])) break;
        all[started]->is_running = 1;
    }
    if (started == count) {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < count; i++) {
            if (all[i]->need != ANOTHER) all[i]->need = advance(all[i]);
        }
        Py_END_ALLOW_THREADS
    }
    for (Py_ssize_t i = 0; i < started; i++) {
        all[i]->is_running = 0;
        if (started == count && all[i]->need == NOTHING) release_array(all[i]);
    }
    free(all);
    if (started < count) return NULL;
    Py_RETURN_NONE;
}

/* Whether no byte is above 0x7F: eight at a time, in blocks, which compilers make wider. */
static int ascii_alone(const uint8_t *bytes, int64_t size)
{
    enum { BLOCK_WORDS = 512 };
    uint64_t found = 0, word;
    while (size >= 8 && !(found & 0x8080808080808080u)) {
        int64_t words = least(size / 8, BLOCK_WORDS);
        for (int64_t i = 0; i < words; i++) {
            memcpy(&word, bytes + 8 * i, 8);
            found |= word;
        }
        bytes += 8 * words;
        size -= 8 * words;
    }
    for (; size; size--) found |= *bytes++;
    return !(found & 0x8080808080808080u);
}

/* is_ascii(bytes, start, end) -> whether the bytes from start to end are ASCII. */
static PyObject *is_ascii(PyObject *module, PyObject *arguments)
{
    Py_buffer given;
    long long start, end;
    int found = 0;
    if (!PyArg_ParseTuple(arguments, "y*LL", &given, &start, &end)) return NULL;
    if (start >= 0 && start <= end && end <= given.len) {
        Py_BEGIN_ALLOW_THREADS
        found = ascii_alone((const uint8_t *)given.buf + start, end - start);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&given);
    return PyBool_FromLong(found);
}

static PyMethodDef methods[] = {
    {"begin", begin, METH_VARARGS, "begin(rows, validity, offsets, out)"},
    {"cut", cut, METH_NOARGS, "cut()"},
    {"dictionary", dictionary, METH_NOARGS, "dictionary() -> (texts, ends) or None"},
    {"filled", filled, METH_O, "filled(size)"},
    {"give", give, METH_O, "give(page)"},
    {"grow", grow, METH_O, "grow(out)"},
    {"packed", packed, METH_NOARGS, "packed() -> bytes"},
    {"state", state, METH_NOARGS, "state() -> (need, needed, used, nulls, rows, done)"},
    {"window", window, METH_O, "window(size) -> memoryview"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot column_slots[] = {
    {Py_tp_new, new_column},
    {Py_tp_dealloc, free_column},
    {Py_tp_methods, methods},
    {Py_tp_doc, "Column(form, length, is_nullable, codec, rows, size, is_checked)"},
    {0, NULL},
};

static PyType_Spec column_spec = {
    "tailer.native._pages.Column", sizeof(Column), 0, Py_TPFLAGS_DEFAULT, column_slots,
};

static PyMethodDef functions[] = {
    {"groups", groups, METH_O, "groups(footer) -> list or None"},
    {"is_ascii", is_ascii, METH_VARARGS, "is_ascii(bytes, start, end) -> bool"},
    {"longest", longest, METH_O, "longest(texts) -> int"},
    {"page_sizes", page_sizes, METH_O, "page_sizes(bytes) -> [(kind, unpacked, stored, header), ...]"},
    {"run", run, METH_O, "run(columns)"},
    {NULL, NULL, 0, NULL},
};

static int prepare(PyObject *module)
{
    const uint16_t one = 1;
    if (!*(const uint8_t *)&one) { /* Arrow's and Parquet's numbers are copied as they are */
        PyErr_SetString(PyExc_ImportError, "for little-endian processors");
        return -1;
    }
    PyObject *type = PyType_FromModuleAndSpec(module, &column_spec, NULL);
    if (!type) return -1;
    Module *state = PyModule_GetState(module);
    state->type = (PyTypeObject *)Py_NewRef(type);
    crc32_prepare(&state->crc32);
    int failed = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    /* INTERFACE is raised with each change of what is taken or given; see decode/pages.py. */
    return failed || PyModule_AddIntConstant(module, "INTERFACE", 6) ? -1 : 0;
}

static int forget(PyObject *module)
{
    Module *state = PyModule_GetState(module);
    Py_CLEAR(state->type);
    return 0;
}

static void free_module(void *module)
{
    Module *state = PyModule_GetState(module);
    for (int kind = 0; kind < KINDS; kind++) {
        while (state->count[kind]) free(state->kept[kind][--state->count[kind]].bytes);
    }
    forget(module);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, prepare}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_pages", NULL, sizeof(Module), functions, slots, NULL, forget,
    free_module,
};

PyMODINIT_FUNC PyInit__pages(void) { return PyModuleDef_Init(&definition); }
