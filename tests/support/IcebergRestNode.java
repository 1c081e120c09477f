package org.apache.iceberg.rest;

import java.net.InetSocketAddress;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.catalog.Catalog;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/**
 * Iceberg's own REST catalog on the port args[0] of this machine, with its database and its files
 * in the folder args[1]. The program that comes with it listens to every machine.
 */
public final class IcebergRestNode {
  public static void main(String[] args) throws Exception {
    Map<String, String> properties =
        Map.of(
            "catalog-impl", "org.apache.iceberg.jdbc.JdbcCatalog",
            "jdbc.schema-version", "V1",
            "uri", "jdbc:sqlite:" + args[1] + "/catalog.db",
            "warehouse", "file://" + args[1] + "/warehouse");
    Catalog catalog =
        CatalogUtil.buildIcebergCatalog("tests", properties, new Configuration());
    RESTCatalogServer.CatalogContext context =
        new RESTCatalogServer.CatalogContext(catalog, properties);
    ServletContextHandler handler = new ServletContextHandler();
    handler.addServlet(
        new ServletHolder(new RESTCatalogServlet(new RESTServerCatalogAdapter(context))), "/*");
    Server server =
        new Server(new InetSocketAddress("127.0.0.1", Integer.parseInt(args[0])));
    server.setHandler(handler);
    server.start();
    server.join();
  }
}
