import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.opensearch.common.settings.Settings;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;
import org.opensearch.plugins.Plugin;
import org.opensearch.transport.Netty4Plugin;

/** One OpenSearch node: its folder in args[0], HTTP on the port args[1]. */
public final class OpenSearchNode extends Node {
  private OpenSearchNode(Settings settings, List<Class<? extends Plugin>> plugins) {
    super(
        InternalSettingsPreparer.prepareEnvironment(settings, Map.of(), null, () -> "node"),
        plugins,
        false);
  }

  public static void main(String[] args) throws Exception {
    Settings settings =
        Settings.builder()
            .put("path.home", args[0])
            .put("path.data", Path.of(args[0], "data").toString())
            .put("cluster.name", "tests")
            .put("discovery.type", "single-node")
            .put("http.host", "127.0.0.1")
            .put("http.port", args[1])
            .put("transport.host", "127.0.0.1")
            .put("transport.port", "0")
            .put("transport.type", "netty4")
            .put("http.type", "netty4")
            .put("node.processors", 2)
            .put("cluster.routing.allocation.disk.threshold_enabled", false)
            .put("cluster.max_shards_per_node", 10000)
            .build();
    new OpenSearchNode(settings, List.of(Netty4Plugin.class)).start();
    Thread.currentThread().join();
  }
}
