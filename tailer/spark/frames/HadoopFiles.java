package tailer.spark;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.FileNotFoundException;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.spark.sql.classic.SparkSession;

/**
 * A table's files by Hadoop's file systems, for the driver: one call a file.
 *
 * <p>Compiled there: see compiled.py. So it is the plainest Java, without generic types.
 */
public final class HadoopFiles {
  private static final int HEAD = 16;
  private static final int INLINE = 64 * 1024;
  private final Configuration conf;
  private final String root;
  private final List folders = new ArrayList();

  HadoopFiles(SparkSession spark, String root, List also) throws IOException {
    this.conf = spark.sessionState().newHadoopConf();
    this.root = root;
    folders.add(qualified(new Path(root)));
    for (int at = 0; at < also.size(); at++) {
      folders.add(qualified(new Path((String) also.get(at))));
    }
  }

  /** What a session reads files with; the class itself can't be called from outside. */
  public static final class Maker {
    public Maker() {}

    /** Return whether the session's Hadoop has a file system for a scheme. */
    public boolean knows(SparkSession spark, String scheme) {
      try {
        return FileSystem.getFileSystemClass(scheme, spark.sessionState().newHadoopConf()) != null;
      } catch (IOException e) {
        return false;
      }
    }

    /** Return the files of a table below a root, or one of the other folders. */
    public HadoopFiles files(SparkSession spark, String root, List also) throws IOException {
      return new HadoopFiles(spark, root, also);
    }
  }

  /**
   * Return what lies in a folder of the table, in JSON as [name, bytes, milliseconds of the last
   * change, whether it is a file], by names after that one; null if there is no such folder.
   */
  public String list(String folder, String after) throws IOException {
    return listed(find(folder), after);
  }

  /** The same of any folder. */
  public String entries(String address) throws IOException {
    return listed(new Path(address), "");
  }

  private String listed(Path folder, String after) throws IOException {
    List found = new ArrayList();
    try {
      FileSystem system = folder.getFileSystem(conf);
      if (system.getFileStatus(folder).isFile()) {
        return null;
      }
      RemoteIterator each = system.listStatusIterator(folder);
      while (each.hasNext()) {
        FileStatus one = (FileStatus) each.next();
        if (one.getPath().getName().compareTo(after) > 0) {
          List facts = new ArrayList();
          facts.add(one.getPath().getName());
          facts.add(Long.valueOf(one.getLen()));
          facts.add(Long.valueOf(one.getModificationTime()));
          facts.add(Boolean.valueOf(one.isFile()));
          found.add(facts);
        }
      }
    } catch (FileNotFoundException e) {
      return null;
    }
    return new ObjectMapper().writeValueAsString(found);
  }

  /**
   * Return a file's size and the milliseconds of its last change, eight bytes each, and at most so
   * many bytes from an offset on; of many, write them to a local file instead, which takes a tenth
   * of the time. A file that is replaced meanwhile is an error.
   */
  public byte[] read(String location, long offset, long most, String local) throws IOException {
    Path path = find(location);
    FileSystem system = path.getFileSystem(conf);
    FileStatus status = system.getFileStatus(path);
    if (status.isDirectory()) {
      throw new FileNotFoundException(location);
    }
    int length = (int) Math.max(0L, Math.min(most, status.getLen() - offset));
    byte[] found = new byte[HEAD + length];
    ByteBuffer.wrap(found).putLong(status.getLen()).putLong(status.getModificationTime());
    if (length > 0) {
      FSDataInputStream in = system.open(path);
      try {
        in.readFully(offset, found, HEAD, length);
      } finally {
        in.close();
      }
      FileStatus after = system.getFileStatus(path);
      if (after.getLen() != status.getLen()
          || after.getModificationTime() != status.getModificationTime()) {
        throw new IOException("it was replaced while it was read");
      }
    }
    if (length <= INLINE) {
      return found;
    }
    FileOutputStream out = new FileOutputStream(local);
    try {
      out.write(found, HEAD, length);
    } finally {
      out.close();
    }
    return Arrays.copyOf(found, HEAD);
  }

  /**
   * Return the addresses and the bytes of files, whose locations are a JSON list, as lists in one;
   * null for a file that is not there.
   */
  public String files(String locations) throws IOException {
    List all = (List) new ObjectMapper().readValue(locations, List.class);
    List found = new ArrayList();
    for (int at = 0; at < all.size(); at++) {
      Path path = find((String) all.get(at));
      try {
        List facts = new ArrayList();
        facts.add(path.toString());
        facts.add(Long.valueOf(path.getFileSystem(conf).getFileStatus(path).getLen()));
        found.add(facts);
      } catch (FileNotFoundException e) {
        found.add(null);
      }
    }
    return new ObjectMapper().writeValueAsString(found);
  }

  private Path find(String location) throws IOException {
    boolean absolute = location.startsWith("/") || location.contains("://");
    String path = qualified(new Path(absolute ? location : root + "/" + location));
    for (int at = 0; at < folders.size(); at++) {
      if (path.startsWith(folders.get(at) + "/")) {
        return new Path(path);
      }
    }
    throw new SecurityException(path);
  }

  /** Return a whole address, in which nothing leads up. */
  private String qualified(Path path) throws IOException {
    return path.getFileSystem(conf).makeQualified(path).toString();
  }
}
