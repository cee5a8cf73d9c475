/* Reads and writes TFRecord framing, and reads the wire format of tf.Example, without an allocation or a Python object
   per record.

   engine.py compiles this file and calls it; in_python.py has the same functions in Python, for machines without a C
   compiler. All positions are relative to `data`. Nothing here trusts a length: each is compared with what remains. */

#include <stdint.h>
#include <string.h>

enum { BYTES = 1, FLOATS = 2, INTEGERS = 3, STEPS = 4 };
enum { SCANNED = 0, NEEDS_MORE = 1, BAD_LENGTH = 2, BAD_DATA = 3 };
enum { HEADER = 12, FOOTER = 4 };

/* CRC-32C. */

static uint32_t tables[8][256];

__attribute__((constructor)) static void make_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (crc & 1 ? 0x82F63B78u : 0);
        tables[0][byte] = crc;
    }
    for (int zeros = 1; zeros < 8; zeros++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t crc = tables[zeros - 1][byte];
            tables[zeros][byte] = (crc >> 8) ^ tables[0][crc & 255];
        }
}

static uint32_t crc_by_tables(uint32_t crc, const uint8_t *data, uint64_t size) {
    for (; size >= 8; size -= 8, data += 8)
        crc = tables[7][(crc ^ data[0]) & 255] ^ tables[6][((crc >> 8) ^ data[1]) & 255] ^
              tables[5][((crc >> 16) ^ data[2]) & 255] ^ tables[4][(crc >> 24) ^ data[3]] ^ tables[3][data[4]] ^
              tables[2][data[5]] ^ tables[1][data[6]] ^ tables[0][data[7]];
    for (; size; size--, data++)
        crc = (crc >> 8) ^ tables[0][(crc ^ *data) & 255];
    return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t crc_by_processor(uint32_t crc, const uint8_t *data, uint64_t size) {
    uint64_t wide = crc, eight;
    for (; size >= 8; size -= 8, data += 8) {
        memcpy(&eight, data, 8);
        wide = __builtin_ia32_crc32di(wide, eight);
    }
    crc = (uint32_t)wide;
    for (; size; size--, data++)
        crc = __builtin_ia32_crc32qi(crc, *data);
    return crc;
}
#endif

static uint32_t masked(const uint8_t *data, uint64_t size) {
    uint32_t crc;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2"))
        crc = crc_by_processor(0xFFFFFFFFu, data, size);
    else
#endif
        crc = crc_by_tables(0xFFFFFFFFu, data, size);
    crc = ~crc;
    return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

/* Records. */

static uint64_t little_endian(const uint8_t *data, int bytes) {
    uint64_t value = 0;
    for (int byte = 0; byte < bytes; byte++)
        value |= (uint64_t)data[byte] << (8 * byte);
    return value;
}

static int has_valid_length(const uint8_t *header) { return masked(header, 8) == little_endian(header + 8, 4); }

/* Finds the records that begin between `position` and `stop`, and checks their checksums.

   starts, lengths: where the contents of the records are written to; `count` gets their number.
   status:          SCANNED, or why the record at the position returned cannot be read.
   Returns the position after the last record. */
int64_t scan_records(const uint8_t *data, int64_t size, int64_t position, int64_t stop, int64_t *starts,
                     int64_t *lengths, int64_t *count, int32_t *status) {
    *count = 0;
    for (*status = SCANNED; position < stop;) {
        if (size - position < HEADER) {
            *status = NEEDS_MORE;
            break;
        }
        const uint8_t *header = data + position;
        if (!has_valid_length(header)) {
            *status = BAD_LENGTH;
            break;
        }
        uint64_t length = little_endian(header, 8);
        int64_t rest = size - position - HEADER - FOOTER;
        if (rest < 0 || length > (uint64_t)rest) {
            *status = NEEDS_MORE;
            break;
        }
        if (masked(header + HEADER, length) != little_endian(header + HEADER + length, 4)) {
            *status = BAD_DATA;
            break;
        }
        starts[*count] = position + HEADER;
        lengths[(*count)++] = (int64_t)length;
        position += HEADER + (int64_t)length + FOOTER;
    }
    return position;
}

static void put_little_endian(uint8_t *out, uint64_t value, int bytes) {
    for (int byte = 0; byte < bytes; byte++)
        out[byte] = (uint8_t)(value >> (8 * byte));
}

/* Writes contents, which are one after the other in `data`, as records to `out`. */
void frame_records(const uint8_t *data, const int64_t *lengths, int64_t rows, uint8_t *out) {
    for (int64_t row = 0; row < rows; row++) {
        uint64_t length = (uint64_t)lengths[row];
        put_little_endian(out, length, 8);
        put_little_endian(out + 8, masked(out, 8), 4);
        memcpy(out + HEADER, data, length);
        put_little_endian(out + HEADER + length, masked(data, length), 4);
        data += length;
        out += HEADER + length + FOOTER;
    }
}

/* Returns the first position from `position` up to `stop` at which a valid header of a record stands, or -1. */
int64_t find_record(const uint8_t *data, int64_t size, int64_t position, int64_t stop) {
    for (; position < stop && size - position >= HEADER; position++)
        /* A record has less than 2^40 bytes, so that most positions need no checksum. */
        if (!(data[position + 5] | data[position + 6] | data[position + 7]) && has_valid_length(data + position))
            return position;
    return -1;
}

/* Wire format. */

struct text {
    const uint8_t *at, *end;
};

/* Without it, -O2 calls these two functions, which takes twice as long; -O3 takes three times as long to compile. */
#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Reads a varint of at most 10 bytes; returns 0 if it does not end. */
ALWAYS_INLINE int read_varint(struct text *text, uint64_t *value) {
    /* Nearly all tags and lengths have one byte. */
    if (text->at < text->end && *text->at < 128) {
        *value = *text->at++;
        return 1;
    }
    *value = 0;
    for (int shift = 0; shift < 70 && text->at < text->end; shift += 7) {
        uint8_t byte = *text->at++;
        *value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            return 1;
    }
    return 0;
}

/* Reads the next field of a message; `value` gets its content. Returns the field's number, shifted by 3 and with the
   wire type, as in the message; 0 at the end, and -1 if the message is damaged. */
ALWAYS_INLINE int64_t next_field(struct text *message, struct text *value) {
    uint64_t tag, size;
    if (message->at == message->end)
        return 0;
    if (!read_varint(message, &tag) || tag >> 3 == 0 || tag > UINT32_MAX)
        return -1;
    value->at = message->at;
    switch (tag & 7) {
    case 0:
        if (!read_varint(message, &size))
            return -1;
        break;
    case 1:
    case 5:
        size = (tag & 7) == 1 ? 8 : 4;
        if (size > (uint64_t)(message->end - message->at))
            return -1;
        message->at += size;
        break;
    case 2:
        if (!read_varint(message, &size) || size > (uint64_t)(message->end - message->at))
            return -1;
        value->at = message->at;
        message->at += size;
        break;
    default:
        return -1;
    }
    value->end = message->at;
    return (int64_t)tag;
}

enum { FIELD_1_VARINT = 8, FIELD_1_BYTES = 10, FIELD_1_FIXED32 = 13, FIELD_2_BYTES = 18 };

/* Returns the number of values in a BytesList, FloatList or Int64List, or -1 if it is damaged. */
static int64_t count_values(struct text list, int kind) {
    struct text item;
    int64_t count = 0, field;
    while ((field = next_field(&list, &item)) > 0) {
        if (kind == FLOATS && field == FIELD_1_BYTES) {
            if ((item.end - item.at) % 4)
                return -1;
            count += (item.end - item.at) / 4;
        } else if (kind == INTEGERS && field == FIELD_1_BYTES) {
            int run = 0;
            for (; item.at < item.end; item.at++) {
                if (*item.at >= 128 && ++run > 9)
                    return -1;
                if (*item.at < 128)
                    run = 0, count++;
            }
            if (run)
                return -1;
        } else if ((kind == BYTES && field == FIELD_1_BYTES) || (kind == FLOATS && field == FIELD_1_FIXED32) ||
                   (kind == INTEGERS && field == FIELD_1_VARINT)) {
            count++;
        }
    }
    return field < 0 ? -1 : count;
}

/* Names of the features to read, in a hash table with open addressing. */

enum { SLOTS = 4096, REMEMBERED = 256 };

struct names {
    const uint8_t *text;
    const int64_t *starts;
    int32_t slots[SLOTS];
    /* The name of each entry of the last record, and its feature. Records mostly have the same features in the same
       order, and comparing two names is faster than hashing one. */
    struct text last[REMEMBERED];
    int32_t last_feature[REMEMBERED];
};

static uint32_t hash(struct text name) {
    uint32_t value = 2166136261u;
    for (; name.at < name.end; name.at++)
        value = (value ^ *name.at) * 16777619u;
    return value ^ (value >> 15);
}

static int is_name(const struct names *names, int32_t feature, struct text name) {
    int64_t size = names->starts[feature + 1] - names->starts[feature];
    return size == name.end - name.at && !memcmp(names->text + names->starts[feature], name.at, (size_t)size);
}

static int32_t find_name(struct names *names, struct text name, int64_t entry) {
    struct text *last = entry < REMEMBERED ? &names->last[entry] : 0;
    size_t size = (size_t)(name.end - name.at);
    if (last && last->at && (size_t)(last->end - last->at) == size && !memcmp(last->at, name.at, size))
        return names->last_feature[entry];
    int32_t feature = -1;
    for (uint32_t slot = hash(name) % SLOTS; names->slots[slot] >= 0; slot = (slot + 1) % SLOTS)
        if (is_name(names, names->slots[slot], name)) {
            feature = names->slots[slot];
            break;
        }
    if (last) {
        *last = name;
        names->last_feature[entry] = feature;
    }
    return feature;
}

/* Where the values of the features are: arrays [features, rows], or [steps] of one feature list. */
struct found {
    int64_t *position, *size, *count;
    uint8_t *kind;
};

static void set(struct found *found, int64_t at, int kind, const uint8_t *data, struct text list, int64_t count) {
    found->kind[at] = (uint8_t)kind;
    found->position[at] = list.at - data;
    found->size[at] = list.end - list.at;
    found->count[at] = count;
}

/* Finds the list of values in a Feature. Returns 0 if it is damaged. */
ALWAYS_INLINE int read_feature(const uint8_t *data, struct text feature, int64_t at, struct found *found) {
    struct text list;
    int64_t field;
    set(found, at, 0, data, feature, 0);
    while ((field = next_field(&feature, &list)) > 0) {
        int kind = field == 10 ? BYTES : field == 18 ? FLOATS : field == 26 ? INTEGERS : 0;
        if (!kind)
            continue;
        int64_t count = count_values(list, kind);
        if (count < 0)
            return 0;
        set(found, at, kind, data, list, count);
    }
    return field == 0;
}

/* Counts the Features of a FeatureList. Returns 0 if it is damaged. */
static int read_feature_list(const uint8_t *data, struct text list, int64_t at, struct found *found) {
    struct text rest = list, step;
    int64_t field, count = 0;
    while ((field = next_field(&rest, &step)) > 0)
        count += field == FIELD_1_BYTES;
    set(found, at, STEPS, data, list, count);
    return field == 0;
}

/* Finds the values of some features in many tf.Examples, or the steps of some feature lists in SequenceExamples.

   starts, lengths:    the Examples, [rows].
   text, name_starts:  the names of the features, one after the other, and where each begins, [features + 1].
   lists:              whether to find feature lists.
   position, size:     where the BytesList, FloatList, Int64List or FeatureList of each feature is, [features, rows].
   count:              the number of its values or steps, 0 if the feature is missing.
   kind:               BYTES, FLOATS, INTEGERS or STEPS; 0 if the feature is missing.
   damaged:            whether a row is no tf.Example, [rows].
   Returns 0, or -1 if there are too many features. */
int32_t index_examples(const uint8_t *data, const int64_t *starts, const int64_t *lengths, int64_t rows,
                       const uint8_t *text, const int64_t *name_starts, int64_t features, int32_t lists,
                       int64_t *position, int64_t *size, int64_t *count, uint8_t *kind, uint8_t *damaged) {
    struct names names = {.text = text, .starts = name_starts};
    struct found found = {position, size, count, kind};
    if (features > SLOTS / 2)
        return -1;
    memset(names.slots, -1, sizeof names.slots);
    for (int32_t feature = 0; feature < features; feature++) {
        struct text name = {text + name_starts[feature], text + name_starts[feature + 1]};
        uint32_t slot = hash(name) % SLOTS;
        while (names.slots[slot] >= 0)
            slot = (slot + 1) % SLOTS;
        names.slots[slot] = feature;
    }
    for (int64_t row = 0; row < rows; row++) {
        struct text example = {data + starts[row], data + starts[row] + lengths[row]}, map, entry, value;
        int64_t number = 0, field, inner = 0, part = 0;
        int good = 1;
        while (good && (field = next_field(&example, &map)) > 0) {
            if (field != (lists ? FIELD_2_BYTES : FIELD_1_BYTES))
                continue;
            while (good && (inner = next_field(&map, &entry)) > 0) {
                if (inner != FIELD_1_BYTES)
                    continue;
                struct text name = {entry.at, entry.at}, feature = name;
                while ((part = next_field(&entry, &value)) > 0) {
                    if (part == FIELD_1_BYTES)
                        name = value;
                    else if (part == FIELD_2_BYTES)
                        feature = value;
                }
                int32_t place = part < 0 ? -1 : find_name(&names, name, number++);
                /* If a key is there twice, its last entry counts. */
                if (place >= 0)
                    good = lists ? read_feature_list(data, feature, place * rows + row, &found)
                                 : read_feature(data, feature, place * rows + row, &found);
                good = good && part == 0;
            }
            good = good && inner == 0;
        }
        damaged[row] = !good || field < 0;
    }
    return 0;
}

/* Finds the values of all steps of one feature list: arrays [sum(count)]. */
void index_steps(const uint8_t *data, const int64_t *list_position, const int64_t *list_size, int64_t rows,
                 int64_t *position, int64_t *size, int64_t *count, uint8_t *kind, uint8_t *damaged) {
    struct found found = {position, size, count, kind};
    int64_t at = 0;
    for (int64_t row = 0; row < rows; row++) {
        struct text list = {data + list_position[row], data + list_position[row] + list_size[row]}, step;
        int64_t field;
        while ((field = next_field(&list, &step)) > 0)
            if (field == FIELD_1_BYTES) {
                damaged[at] = !read_feature(data, step, at, &found);
                at++;
            }
    }
}

/* Writes the numbers of all FloatLists to `out`, one after the other. */
void decode_floats(const uint8_t *data, const int64_t *position, const int64_t *size, const int64_t *count,
                   int64_t rows, float *out) {
    for (int64_t row = 0; row < rows; row++) {
        struct text list = {data + position[row], data + position[row] + size[row]}, item;
        int64_t field;
        if (!count[row])
            continue;
        while ((field = next_field(&list, &item)) > 0)
            if (field == FIELD_1_BYTES || field == FIELD_1_FIXED32) {
                memcpy(out, item.at, (size_t)(item.end - item.at));
                out += (item.end - item.at) / 4;
            }
    }
}

/* Writes the numbers of all Int64Lists to `out`, one after the other. */
void decode_integers(const uint8_t *data, const int64_t *position, const int64_t *size, const int64_t *count,
                     int64_t rows, int64_t *out) {
    for (int64_t row = 0; row < rows; row++) {
        struct text list = {data + position[row], data + position[row] + size[row]}, item;
        int64_t field;
        uint64_t value;
        if (!count[row])
            continue;
        while ((field = next_field(&list, &item)) > 0)
            if (field == FIELD_1_BYTES || field == FIELD_1_VARINT)
                while (item.at < item.end && read_varint(&item, &value))
                    *out++ = (int64_t)value;
    }
}

/* Writes the texts of all BytesLists to `out`, one after the other, and to `offsets` where each begins. */
void decode_bytes(const uint8_t *data, const int64_t *position, const int64_t *size, const int64_t *count,
                  int64_t rows, int64_t *offsets, uint8_t *out) {
    int64_t written = 0;
    *offsets = 0;
    for (int64_t row = 0; row < rows; row++) {
        struct text list = {data + position[row], data + position[row] + size[row]}, item;
        int64_t field;
        if (!count[row])
            continue;
        while ((field = next_field(&list, &item)) > 0)
            if (field == FIELD_1_BYTES) {
                memcpy(out + written, item.at, (size_t)(item.end - item.at));
                written += item.end - item.at;
                *++offsets = written;
            }
    }
}
