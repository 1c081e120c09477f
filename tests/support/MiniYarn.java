import java.io.FileOutputStream;
import java.io.OutputStream;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/**
 * YARN for tests: a resource manager and one node. {@code MiniYarn FOLDER} writes what clients need
 * into FOLDER/yarn-site.xml.
 */
public final class MiniYarn {
  public static void main(String[] given) throws Exception {
    YarnConfiguration conf = new YarnConfiguration();
    conf.set("fs.defaultFS", "file:///");
    conf.set("yarn.scheduler.capacity.root.queues", "default");
    conf.set("yarn.scheduler.capacity.root.default.capacity", "100");
    conf.set("yarn.scheduler.capacity.maximum-am-resource-percent", "1");
    conf.setInt("yarn.scheduler.minimum-allocation-mb", 256);
    conf.setInt("yarn.nodemanager.resource.memory-mb", 6144);
    conf.setBoolean("yarn.nodemanager.vmem-check-enabled", false);
    conf.setBoolean("yarn.nodemanager.pmem-check-enabled", false);
    // A tester's disk may be nearly full.
    conf.setBoolean("yarn.nodemanager.disk-health-checker.enable", false);
    MiniYARNCluster cluster = new MiniYARNCluster("yarn", 1, 1, 1);
    cluster.init(conf);
    cluster.start();
    try (OutputStream file = new FileOutputStream(given[0] + "/yarn-site.xml")) {
      cluster.getConfig().writeXml(file);
    }
    System.out.println("listening at " + cluster.getConfig().get("yarn.resourcemanager.webapp.address"));
  }
}
