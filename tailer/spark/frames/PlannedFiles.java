package tailer.spark;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.paths.SparkPath;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.FileSourceOptions;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.EvalMode;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.execution.datasources.FilePartition;
import org.apache.spark.sql.execution.datasources.FileScanRDD;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.NoopCache$;
import org.apache.spark.sql.execution.datasources.PartitionPath;
import org.apache.spark.sql.execution.datasources.PartitionSpec;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.execution.datasources.PartitioningAwareFileIndex;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat;
import org.apache.spark.sql.execution.datasources.text.TextFileFormat;
import org.apache.spark.sql.sources.And;
import org.apache.spark.sql.sources.EqualNullSafe;
import org.apache.spark.sql.sources.EqualTo;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.sources.GreaterThan;
import org.apache.spark.sql.sources.GreaterThanOrEqual;
import org.apache.spark.sql.sources.In;
import org.apache.spark.sql.sources.IsNotNull;
import org.apache.spark.sql.sources.IsNull;
import org.apache.spark.sql.sources.LessThan;
import org.apache.spark.sql.sources.LessThanOrEqual;
import org.apache.spark.sql.sources.Not;
import org.apache.spark.sql.sources.Or;
import org.apache.spark.sql.sources.StringStartsWith;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.LongType$;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StringType$;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.unsafe.types.UTF8String;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Files that were planned, for Spark's own Parquet reader: each is a partition whose values are its
 * facts. Spark lists nothing, reads the facts once a file, and leaves out files by conditions on
 * them. A file that has two sets of facts is two partitions. And the bytes of such files, for
 * tasks that decode them.
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
     * Return the relation of some files. The schemas are Spark's JSON; that of what is read has the
     * names, or, by id, the ids that the columns have in the files. The options are a JSON object,
     * and the files a list of [path, bytes, milliseconds of the last change, facts as texts].
     */
    public HadoopFsRelation relation(
        SparkSession spark,
        String schema,
        String readSchema,
        boolean byId,
        String factsSchema,
        String options,
        String files)
        throws Exception {
      ObjectMapper json = new ObjectMapper();
      StructType facts = (StructType) DataType.fromJson(factsSchema);
      StructType logical = (StructType) DataType.fromJson(schema);
      StructType physical = (StructType) DataType.fromJson(readSchema);
      return new HadoopFsRelation(
          new PlannedFiles(spark, facts, (List) json.readValue(files, List.class)),
          facts,
          logical,
          Option.empty(),
          new RenamingFormat(logical, physical, byId),
          scala.collection.immutable.Map$.MODULE$.from(
              CollectionConverters.asScala((Map) json.readValue(options, Map.class))),
          spark);
    }

    /**
     * Return the lines of files as Spark's text reader has them, each with the facts of its file:
     * one partition of the frame for each of the tasks, which are a list of such files.
     */
    public Dataset lines(SparkSession session, String factsSchema, String options, String tasks)
        throws Exception {
      ObjectMapper json = new ObjectMapper();
      org.apache.spark.sql.classic.SparkSession spark =
          (org.apache.spark.sql.classic.SparkSession) session;
      StructType facts = (StructType) DataType.fromJson(factsSchema);
      StructType line = new StructType().add("value", "string");
      StructType schema = line;
      scala.collection.immutable.Map none = scala.collection.immutable.Map$.MODULE$.empty();
      scala.collection.immutable.Map given =
          scala.collection.immutable.Map$.MODULE$.from(
              CollectionConverters.asScala((Map) json.readValue(options, Map.class)));
      List all = (List) json.readValue(tasks, List.class);
      List partitions = new ArrayList();
      for (int task = 0; task < all.size(); task++) {
        List planned = (List) all.get(task);
        PartitionedFile[] files = new PartitionedFile[planned.size()];
        for (int at = 0; at < files.length; at++) {
          List file = (List) planned.get(at);
          SparkPath path = SparkPath.fromPath(new Path((String) file.get(0)));
          long size = ((Number) file.get(1)).longValue();
          InternalRow values = row(facts, (List) file.get(3));
          files[at] = new PartitionedFile(values, path, 0L, size, new String[0], 0L, size, none);
        }
        partitions.add(new FilePartition(task, files));
      }
      scala.collection.immutable.Seq nothing =
          CollectionConverters.asScala(new ArrayList()).toSeq();
      Configuration conf = spark.sessionState().newHadoopConf();
      scala.Function1 read =
          new TextFileFormat()
              .buildReaderWithPartitionValues(spark, line, facts, line, nothing, given, conf);
      for (int at = 0; at < facts.length(); at++) {
        schema = schema.add(facts.fields()[at]);
      }
      FileScanRDD rows =
          new FileScanRDD(
              spark,
              read,
              CollectionConverters.asScala(partitions).toSeq(),
              schema,
              nothing,
              none,
              new FileSourceOptions(given));
      return spark.internalCreateDataFrame(rows, schema, false);
    }
  }

  /**
   * Spark's Parquet reader for columns that have other names in the files. The reader that is sent
   * to the executors is Spark's own.
   */
  public static final class RenamingFormat extends ParquetFileFormat {
    private final StructType logical;
    private final StructType physical;
    private final boolean byId;

    RenamingFormat(StructType logical, StructType physical, boolean byId) {
      this.logical = logical;
      this.physical = physical;
      this.byId = byId;
    }

    public scala.Function1 buildReaderWithPartitionValues(
        SparkSession spark,
        StructType dataSchema,
        StructType partitionSchema,
        StructType requiredSchema,
        scala.collection.immutable.Seq filters,
        scala.collection.immutable.Map options,
        Configuration conf) {
      conf.setBoolean("spark.sql.parquet.fieldId.read.enabled", byId);
      return new ParquetFileFormat()
          .buildReaderWithPartitionValues(
              spark,
              physical,
              partitionSchema,
              (StructType) renamed(requiredSchema, logical, physical),
              renamedFilters(filters),
              options,
              conf);
    }

    /** Return a part of the logical type with the names and metadata of the physical one. */
    private static DataType renamed(DataType part, DataType logical, DataType physical) {
      if (part instanceof StructType) {
        StructField[] fields = ((StructType) part).fields();
        StructField[] found = new StructField[fields.length];
        for (int at = 0; at < fields.length; at++) {
          int index = ((StructType) logical).fieldIndex(fields[at].name());
          StructField in = ((StructType) physical).fields()[index];
          DataType of = ((StructType) logical).fields()[index].dataType();
          DataType type = renamed(fields[at].dataType(), of, in.dataType());
          found[at] = new StructField(in.name(), type, fields[at].nullable(), in.metadata());
        }
        return new StructType(found);
      }
      if (part instanceof ArrayType) {
        ArrayType list = (ArrayType) part;
        DataType of = ((ArrayType) logical).elementType();
        DataType element = renamed(list.elementType(), of, ((ArrayType) physical).elementType());
        return new ArrayType(element, list.containsNull());
      }
      if (part instanceof MapType) {
        MapType map = (MapType) part;
        MapType of = (MapType) logical;
        MapType in = (MapType) physical;
        return new MapType(
            renamed(map.keyType(), of.keyType(), in.keyType()),
            renamed(map.valueType(), of.valueType(), in.valueType()),
            map.valueContainsNull());
      }
      return part;
    }

    /**
     * Return the conditions by the names in the files, without those that can't be renamed: Spark
     * checks each row again. Names in the files say nothing of columns that are found by id.
     */
    private scala.collection.immutable.Seq renamedFilters(scala.collection.immutable.Seq filters) {
      List found = new ArrayList();
      for (int at = 0; at < filters.size() && !byId; at++) {
        Filter one = renamed((Filter) filters.apply(at));
        if (one != null) {
          found.add(one);
        }
      }
      return CollectionConverters.asScala(found).toSeq();
    }

    /** Return a condition by the names in the files; null if it has another form, or a field. */
    private Filter renamed(Filter filter) {
      if (filter instanceof And) {
        Filter left = renamed(((And) filter).left());
        Filter right = renamed(((And) filter).right());
        return left == null || right == null ? null : new And(left, right);
      }
      if (filter instanceof Or) {
        Filter left = renamed(((Or) filter).left());
        Filter right = renamed(((Or) filter).right());
        return left == null || right == null ? null : new Or(left, right);
      }
      if (filter instanceof Not) {
        Filter child = renamed(((Not) filter).child());
        return child == null ? null : new Not(child);
      }
      String[] references = filter.references();
      String name = references.length == 1 ? inFile(references[0]) : null;
      if (name == null) {
        return null;
      }
      if (filter instanceof EqualTo) {
        return new EqualTo(name, ((EqualTo) filter).value());
      }
      if (filter instanceof EqualNullSafe) {
        return new EqualNullSafe(name, ((EqualNullSafe) filter).value());
      }
      if (filter instanceof GreaterThan) {
        return new GreaterThan(name, ((GreaterThan) filter).value());
      }
      if (filter instanceof GreaterThanOrEqual) {
        return new GreaterThanOrEqual(name, ((GreaterThanOrEqual) filter).value());
      }
      if (filter instanceof LessThan) {
        return new LessThan(name, ((LessThan) filter).value());
      }
      if (filter instanceof LessThanOrEqual) {
        return new LessThanOrEqual(name, ((LessThanOrEqual) filter).value());
      }
      if (filter instanceof In) {
        return new In(name, ((In) filter).values());
      }
      if (filter instanceof IsNull) {
        return new IsNull(name);
      }
      if (filter instanceof IsNotNull) {
        return new IsNotNull(name);
      }
      if (filter instanceof StringStartsWith) {
        return new StringStartsWith(name, ((StringStartsWith) filter).value());
      }
      return null;
    }

    /** Return the name in the files of a column, both as conditions write them; null if unknown. */
    private String inFile(String name) {
      StructField[] fields = logical.fields();
      for (int at = 0; at < fields.length; at++) {
        if (quoted(fields[at].name()).equals(name)) {
          return quoted(physical.fields()[at].name());
        }
      }
      return null;
    }

    private static String quoted(String name) {
      boolean plain = name.matches("[a-zA-Z0-9_]+") && !name.matches("\\d+");
      return plain ? name : "`" + name.replace("`", "``") + "`";
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
    boolean time = kind instanceof TimestampType || kind instanceof TimestampNTZType;
    DataType as = time ? LongType$.MODULE$ : kind;
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
