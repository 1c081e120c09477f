import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Objects;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.api.TableResult;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;

/** Runs the SQL statements of a JSON file; prints the changes of the last one's result. */
class FlinkSql {
    private static String shown(Object value) {
        if (value instanceof byte[] bytes) {
            return HexFormat.of().formatHex(bytes);
        }
        return value instanceof Object[] values ? Arrays.toString(values) : Objects.toString(value, null);
    }

    public static void main(String[] arguments) throws Exception {
        var json = new ObjectMapper();
        String[] statements = json.readValue(new File(arguments[0]), String[].class);
        var tables = TableEnvironment.create(EnvironmentSettings.inStreamingMode());
        tables.getConfig().set("table.local-time-zone", "UTC");
        TableResult result = null;
        for (String statement : statements) {
            result = tables.executeSql(statement);
        }
        try (CloseableIterator<Row> rows = result.collect()) {
            while (rows.hasNext()) {
                Row row = rows.next();
                List<String> line = new ArrayList<>(List.of(row.getKind().shortString()));
                for (int i = 0; i < row.getArity(); i++) {
                    Object value = row.getField(i);
                    line.add(shown(value));
                }
                System.out.println(json.writeValueAsString(line));
            }
        }
    }
}
