import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** HDFS for tests: a namenode on a port and one datanode, over a folder. {@code MiniHdfs PORT FOLDER} */
public final class MiniHdfs {
  public static void main(String[] given) throws Exception {
    Configuration conf = new Configuration();
    conf.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, given[1]);
    conf.set("dfs.permissions.enabled", "true");
    conf.set("dfs.namenode.safemode.extension", "0");
    boolean isNew = !new java.io.File(given[1], "name-0-1").exists();
    MiniDFSCluster cluster =
        new MiniDFSCluster.Builder(conf)
            .numDataNodes(1)
            .nameNodePort(Integer.parseInt(given[0]))
            .format(isNew)
            .build();
    cluster.waitClusterUp();
    if (isNew) {
      cluster.getFileSystem().setPermission(new Path("/"), FsPermission.valueOf("drwxrwxrwx"));
    }
    System.out.println("listening");
  }
}
