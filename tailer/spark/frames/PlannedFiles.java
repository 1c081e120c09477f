package tailer.spark;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.EvalMode;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.NoopCache$;
import org.apache.spark.sql.execution.datasources.PartitionPath;
import org.apache.spark.sql.execution.datasources.PartitionSpec;
import org.apache.spark.sql.execution.datasources.PartitioningAwareFileIndex;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.LongType$;
import org.apache.spark.sql.types.StringType$;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.unsafe.types.UTF8String;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Files that were planned, for Spark's own Parquet reader: each is a partition whose values are its
 * facts. Spark lists nothing, reads the facts once a file, and leaves out files by conditions on
 * them. A file that has two sets of facts is two partitions.
 *
 * <p>Compiled in the driver by the compiler that Spark has for its queries: see planned_files.py. It
 * stays there, so it is the plainest Java, without generic types.
 */
public final class PlannedFiles extends PartitioningAwareFileIndex {
  private final PartitionSpec spec;
  private final scala.collection.immutable.Seq paths;
  private final scala.collection.mutable.LinkedHashMap byPath =
      new scala.collection.mutable.LinkedHashMap();
  private final scala.collection.immutable.Map inFolder;

  PlannedFiles(SparkSession spark, StructType factsSchema, List files) {
    super(
        spark,
        scala.collection.immutable.Map$.MODULE$.empty(),
        Option.empty(),
        NoopCache$.MODULE$);
    List partitions = new ArrayList();
    scala.collection.mutable.LinkedHashMap alone = new scala.collection.mutable.LinkedHashMap();
    for (int at = 0; at < files.size(); at++) {
      List file = (List) files.get(at);
      Path path = new Path((String) file.get(0));
      long size = ((Number) file.get(1)).longValue();
      long changed = ((Number) file.get(2)).longValue();
      FileStatus status = new FileStatus(size, false, 1, size, changed, path);
      partitions.add(new PartitionPath(row(factsSchema, (List) file.get(3)), path));
      byPath.put(path, status);
      // The file stands for the folder that a partition is.
      alone.put(path, new FileStatus[] {status});
    }
    spec = new PartitionSpec(factsSchema, CollectionConverters.asScala(partitions).toSeq());
    paths = byPath.keys().toSeq();
    inFolder = scala.collection.immutable.Map$.MODULE$.from(alone);
  }

  /** What a session makes relations with; the class itself can't be called from outside. */
  public static final class Maker {
    public Maker() {}

    /**
     * Return the relation of some files. Both schemas are Spark's JSON, the options a JSON object,
     * and the files a list of [path, bytes, milliseconds of the last change, facts as texts].
     */
    public HadoopFsRelation relation(
        SparkSession spark, String schema, String factsSchema, String options, String files)
        throws Exception {
      ObjectMapper json = new ObjectMapper();
      StructType facts = (StructType) DataType.fromJson(factsSchema);
      return new HadoopFsRelation(
          new PlannedFiles(spark, facts, (List) json.readValue(files, List.class)),
          facts,
          (StructType) DataType.fromJson(schema),
          Option.empty(),
          new ParquetFileFormat(),
          scala.collection.immutable.Map$.MODULE$.from(
              CollectionConverters.asScala((Map) json.readValue(options, Map.class))),
          spark);
    }
  }

  private static InternalRow row(StructType schema, List texts) {
    Object[] values = new Object[schema.length()];
    for (int at = 0; at < values.length; at++) {
      values[at] = texts.get(at) == null ? null : value(schema, at, (String) texts.get(at));
    }
    return new GenericInternalRow(values);
  }

  private static Object value(StructType schema, int at, String text) {
    DataType kind = schema.fields()[at].dataType();
    if (kind instanceof BinaryType) {
      return HexFormat.of().parseHex(text);
    }
    // Times are microseconds: no time zone of this machine has a say.
    DataType as = kind instanceof TimestampType ? LongType$.MODULE$ : kind;
    Literal literal = new Literal(UTF8String.fromString(text), StringType$.MODULE$);
    return new Cast(literal, as, Option.apply("UTC"), EvalMode.ANSI()).eval(null);
  }

  public PartitionSpec partitionSpec() {
    return spec;
  }

  public scala.collection.immutable.Seq rootPaths() {
    return paths;
  }

  public scala.collection.mutable.LinkedHashMap leafFiles() {
    return byPath;
  }

  public scala.collection.immutable.Map leafDirToChildrenFiles() {
    return inFolder;
  }

  /** The files of a plan never change. */
  public void refresh() {}
}
