"""Rows of every type, and expressions over them: what the golden results are of.

    python -m tests.shape.expressions        # write the golden results again

A result that differs between the lowest and the highest DuckDB that is allowed fails
`make test-lowest` or `make test`: refuse the function, or pin what it depends on.
"""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

GOLDEN = Path(__file__).with_name("expressions.json")
ROWS = pa.table(
    {
        "b": pa.array([True, False, None, True], pa.bool_()),
        "i8": pa.array([1, -128, None, 127], pa.int8()),
        "i32": pa.array([7, -7, None, 2**31 - 1], pa.int32()),
        "i64": pa.array([10, -3, None, 2**53 + 1], pa.int64()),
        "f": pa.array([0.5, -0.0, None, float("nan")], pa.float32()),
        "d": pa.array([1.25, -0.0, None, float("inf")], pa.float64()),
        "dec": pa.array([Decimal("1.50"), Decimal("-2.25"), None, Decimal("99.99")],
                        pa.decimal128(10, 2)),
        "big": pa.array([Decimal(10) ** 27, Decimal(-1), None, Decimal(0)],
                        pa.decimal128(38, 10)),
        "s": pa.array(["Ärger ß", "", None, "a,b;c"], pa.string()),
        "t": pa.array(["2024-02-29", "x", None, "42"], pa.string()),
        "bin": pa.array([b"\x00\xff", b"", None, b"abc"], pa.binary()),
        "day": pa.array([dt.date(2024, 2, 29), dt.date(1582, 10, 15), None, dt.date(1, 1, 1)]),
        "ts": pa.array([1_709_210_096_123_456, -1, None, 0], pa.timestamp("us", "UTC")),
        "ntz": pa.array([1_709_210_096_123_456, -1, None, 0], pa.timestamp("us")),
        "l": pa.array([[1, None, 3], [], None, [2]], pa.list_(pa.int32())),
        "m": pa.array([[("k", 1), ("q", None)], [], None, [("k", 2)]],
                      pa.map_(pa.string(), pa.int32())),
        "st": pa.array([{"x": 1, "y": {"z": "deep"}}, {"x": None, "y": None}, None,
                        {"x": 3, "y": {"z": None}}],
                       pa.struct([("x", pa.int64()), ("y", pa.struct([("z", pa.string())]))])),
        "strange.name": pa.array(["dot", 'quo"te', None, "x"], pa.string()),
        "length": pa.array([1, 2, None, 3], pa.int32()),
    }
)  # fmt: skip
EXPRESSIONS = """
b and true | b or null | not b | b is null | b is not true | b::int | case when b then 1 end
i8 - 1::smallint | i8 * 2::smallint | abs(i32) | -i64 | i32 % 4 | i32 // 2 | i32 / 2 | i32 % 0
i64 // 0
i64 / 0 | i64 + i32 | i64 = 10 | i64 <> i32 | i64 between -5 and 20 | i64 in (10, null) | i64 & 6
xor(i64, 5) | greatest(i64, i32) | least(i64, null, 3) | sign(i64)
i64::varchar | i64::double | i64 > 9.5 | coalesce(i64, 0) | nullif(i64, 10) | i64 ** 2
bit_count(i64)
i64 is distinct from 10 | hex(i64) | bin(i64) | i64 = '10' | factorial(5) | gcd(i64, 4)
f * 2 | f = 0 | f > 1e9 | isnan(f) | f::double | round(f) | d + 1 | d / 0 | -d | sqrt(abs(d))
d = 0.0 | d > 1e300 | isinf(d) | round(d, 1) | floor(d) | ceil(d) | trunc(d) | exp(0.0) | pi()
ln(2.0) | log10(100.0) | pow(d, 2) | d::varchar | cbrt(27.0) | sin(0.0) | atan2(0.0, 1.0)
even(d)
dec + 1 | dec * 2 | dec * dec | dec / 3 | round(dec, 1) | dec::int | dec > 1.5 | dec = 1.50 | -dec
dec % 1 | abs(dec) | dec::double | dec::varchar | floor(dec) | big + 1 | big = 1 | big::varchar
big > 1 | dec + big | dec::decimal(38, 2)
upper(s) | lower(s) | length(s) | strlen(s) | s || '!' | concat(s, null, 'x') | substr(s, 1, 2)
left(s, 3) | right(s, 3) | reverse(s) | trim(s) | replace(s, 'a', 'A') | s like 'a%'
s ilike 'A%'
s not like '%b%' | s similar to '.*b.*' | contains(s, 'b') | starts_with(s, 'a')
ends_with(s, 'c')
strpos(s, 'b') | split_part(s, ',', 1) | string_split(s, ',')
regexp_replace(s, '[ab]', '_', 'g')
regexp_extract(s, '([a-z]),', 1) | regexp_matches(s, '^a') | lpad(s, 8, '.') | rpad(s, 8, '.')
repeat(s, 2) | ascii(s) | md5(s) | sha256(s) | translate(s, 'ab', 'xy') | s < 'b' | s = ''
s is null
jaccard(t, '42x') | to_base64(encode(s)) | url_encode(s) | concat_ws('-', s, t)
try_cast(t as int) | try_cast(t as date) | try_strptime(t, '%Y-%m-%d') | printf('%05d', i32)
format('{}-{}', s, i64) | bin::varchar | octet_length(bin) | hex(bin) | bin || bin
bin = 'abc'::blob
day + 1 | day - date '2024-01-01' | day + interval 1 month | year(day) | month(day) | day(day)
dayofweek(day) | week(day) | quarter(day) | last_day(day) | date_trunc('month', day)
monthname(day)
strftime(day, '%d.%m.%Y') | day < '2024-01-01' | extract(year from day) | day::varchar
day::timestamp
date_diff('day', date '2024-01-01', day) | make_date(2024, 1, 1) | date_part('doy', day)
ts + interval 1 hour | ts::date | year(ts) | hour(ts) | strftime(ts, '%Y-%m-%d %H:%M:%S')
ts::varchar
date_trunc('hour', ts) | epoch(ts) | epoch_ms(ts) | ts > timestamptz '2024-01-01 00:00:00+02'
ts < '2024-03-01' | extract(minute from ts) | ts at time zone 'Europe/Berlin'
time_bucket(interval 1 day, ts)
ntz + interval 1 hour | ntz::date | hour(ntz) | strftime(ntz, '%H:%M') | date_trunc('day', ntz)
ntz = '2024-02-29 12:34:56.123456' | ntz::timestamptz | age(ntz, timestamp '2020-01-01')::varchar
l[1] | l[-1] | len(l) | list_contains(l, 3) | list_sum(l) | list_max(l) | list_sort(l) | l || [9]
list_transform(l, lambda x: x * 2) | list_filter(l, lambda x: x > 1) | array_to_string(l, '-')
list_distinct(l) | list_reverse(l) | l is null | [x + 1 for x in l] | list_value(i32, 1) | l[1:2]
m['k'] | map_keys(m) | map_values(m) | cardinality(m)::int | map_contains(m, 'q') | map {'a': i32}
st.x | st.y.z | st['x'] | struct_pack(a := i32, b := s) | {'a': st.x} | st.y
"strange.name" | "strange.name" || '!' | length("strange.name") | length + 1 | length(s) + length
to_json(st) | to_json(l)::varchar | json_extract_string('{"a": 1}', '$.a') | i64::varchar || s
case s when 'a,b;c' then 1 when '' then 2 else 3 end | if(b, 'yes', 'no') | ifnull(i32, -1)
"""


def listed() -> list[str]:
    """Each expression once."""
    lines = EXPRESSIONS.splitlines()
    return [one.strip() for line in lines for one in line.split(" | ") if one.strip()]


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def main() -> None:
    """Write what the expressions give here."""
    from tests.shape.test_values import computed

    golden = {sql: computed(sql) for sql in listed()}
    lines = (f"  {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in golden.items())
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(golden)} expressions")


if __name__ == "__main__":
    main()
