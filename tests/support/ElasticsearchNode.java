import java.nio.file.Path;
import java.util.Map;
import org.elasticsearch.common.logging.LogConfigurator;
import org.elasticsearch.common.settings.Settings;
import org.elasticsearch.env.Environment;
import org.elasticsearch.node.Node;
import org.elasticsearch.plugins.PluginsLoader;

/**
 * One Elasticsearch node: the folder with its modules in args[0], its own in args[1], HTTP on the
 * port args[2].
 */
public final class ElasticsearchNode {
  public static void main(String[] args) throws Exception {
    Settings settings =
        Settings.builder()
            .put("path.home", args[0])
            .put("path.data", Path.of(args[1], "data").toString())
            .put("path.logs", Path.of(args[1], "logs").toString())
            .put("cluster.name", "tests")
            .put("node.name", "node")
            .put("discovery.type", "single-node")
            .put("http.host", "127.0.0.1")
            .put("http.port", args[2])
            .put("transport.host", "127.0.0.1")
            .put("transport.port", "0")
            .put("node.processors", 2)
            .put("cluster.routing.allocation.disk.threshold_enabled", false)
            .put("cluster.max_shards_per_node", 10000)
            .build();
    LogConfigurator.configureWithoutConfig(settings);
    Environment environment = new Environment(settings, Path.of(args[1], "config"));
    PluginsLoader plugins =
        PluginsLoader.createPluginsLoader(
            PluginsLoader.loadModulesBundles(environment.modulesDir()),
            PluginsLoader.loadPluginsBundles(environment.pluginsDir()),
            Map.of());
    new Node(environment, plugins).start();
    Thread.currentThread().join();
  }
}
