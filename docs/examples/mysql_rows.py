"""Prints the rows of a table: python mysql_rows.py URL TABLE."""

import sys
from urllib.parse import unquote, urlsplit

import pymysql

url, table = urlsplit(sys.argv[1]), sys.argv[2]
connection = pymysql.connect(
    host=url.hostname,
    port=url.port or 3306,
    user=unquote(url.username or ""),
    password=unquote(url.password or ""),
    database=url.path.strip("/"),
)
with connection, connection.cursor() as cursor:
    cursor.execute("SELECT * FROM " + table)  # noqa: S608 - a name that you have given
    for row in cursor:
        print(*row)
