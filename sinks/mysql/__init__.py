"""The MySQL sink, for MySQL and MariaDB."""
