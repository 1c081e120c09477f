package tailer.spark;

import java.util.Collections;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.BiFunction;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A stream of ranges of changes: offsets, and no rows. The planner in Python answers each of Spark's
 * questions (streams.py); the rows of a range are a frame of their own, made in foreachBatch.
 *
 * <p>Compiled in the driver, where it stays: see compiled.py. So it is the plainest Java, without
 * generic types, and no task is made of it.
 */
public final class ChangeRanges implements TableProvider {
  /** Planners on their way to a table: Spark makes a provider by its name and with texts alone. */
  private static final Map PLANNERS = new ConcurrentHashMap();

  public ChangeRanges() {}

  /** What a session makes streams with. */
  public static final class Maker {
    public Maker() {}

    /** Return the frame of a stream whose offsets the planner knows. */
    public Dataset frame(SparkSession spark, BiFunction planner) {
      String name = UUID.randomUUID().toString();
      Thread thread = Thread.currentThread();
      ClassLoader before = thread.getContextClassLoader();
      PLANNERS.put(name, planner);
      // Spark looks for a source there, and this class is nowhere else.
      thread.setContextClassLoader(ChangeRanges.class.getClassLoader());
      try {
        String source = ChangeRanges.class.getName();
        return spark.readStream().format(source).option("planner", name).load();
      } finally {
        thread.setContextClassLoader(before);
        PLANNERS.remove(name);
      }
    }
  }

  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return new StructType();
  }

  public Table getTable(StructType schema, Transform[] partitioning, Map properties) {
    return new RangeTable((BiFunction) PLANNERS.get(properties.get("planner")));
  }

  /** The table, its scan and its builder: there is nothing to choose. */
  static final class RangeTable implements SupportsRead, ScanBuilder, Scan {
    private final BiFunction planner;

    RangeTable(BiFunction planner) {
      this.planner = planner;
    }

    public String name() {
      return "tailer";
    }

    public StructType schema() {
      return new StructType();
    }

    public StructType readSchema() {
      return new StructType();
    }

    public Set capabilities() {
      return Collections.singleton(TableCapability.MICRO_BATCH_READ);
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      return this;
    }

    public Scan build() {
      return this;
    }

    public MicroBatchStream toMicroBatchStream(String checkpoint) {
      return new Stream(planner);
    }
  }

  /** One run of a query. */
  static final class Stream implements MicroBatchStream, SupportsTriggerAvailableNow {
    private final BiFunction planner;
    private final String run = UUID.randomUUID().toString();

    Stream(BiFunction planner) {
      this.planner = planner;
    }

    /** Ask the planner; an answer that begins with "!" is the sentence of an error. */
    private String ask(String question, String about) {
      String answer = (String) planner.apply(run + " " + question, about);
      if (answer.startsWith("!")) {
        throw new IllegalStateException(answer.substring(1));
      }
      return answer;
    }

    public Offset initialOffset() {
      return new Place(ask("initial_offset", ""));
    }

    public Offset deserializeOffset(String json) {
      return new Place(json);
    }

    public ReadLimit getDefaultReadLimit() {
      return ReadLimit.maxFiles(Integer.parseInt(ask("files_max", "")));
    }

    public Offset latestOffset() {
      throw new UnsupportedOperationException("a batch has a beginning and a limit");
    }

    /** Only "everything" is another limit than the default one. */
    public Offset latestOffset(Offset start, ReadLimit limit) {
      boolean all = limit.equals(ReadLimit.allAvailable());
      return new Place(ask(all ? "end_of_all" : "end_of_batch", start.json()));
    }

    public Offset reportLatestOffset() {
      return new Place(ask("newest_offset", ""));
    }

    public void prepareForTriggerAvailableNow() {
      ask("end_at_newest", "");
    }

    public InputPartition[] planInputPartitions(Offset start, Offset end) {
      ask("plan", "[" + start.json() + "," + end.json() + "]");
      return new InputPartition[0];
    }

    public PartitionReaderFactory createReaderFactory() {
      return null;
    }

    public void commit(Offset end) {}

    public void stop() {
      try {
        ask("stop", "");
      } catch (RuntimeException e) {
        // Python has ended before.
      }
    }

    public String toString() {
      return ask("description", "");
    }
  }

  /** An offset, as the text that the planner gave: Spark compares offsets by it. */
  static final class Place extends Offset {
    private final String json;

    Place(String json) {
      this.json = json;
    }

    public String json() {
      return json;
    }
  }
}
