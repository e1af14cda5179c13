// A web server in Java: maps, checksums and eight threads. Prints `port N`.
import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.util.Arrays;
import java.util.HashMap;
import java.util.concurrent.Executors;
import java.util.zip.CRC32;

public class Web {
    public static void main(String[] arguments) throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        server.createContext("/", exchange -> {
            HashMap<String, Integer> sums = new HashMap<>();
            for (int i = 0; i < 2000; i++) sums.merge("k" + i % 31, i, Integer::sum);
            byte[] bytes = new byte[100000];
            Arrays.fill(bytes, (byte) sums.size());
            CRC32 checksum = new CRC32();
            checksum.update(bytes);
            byte[] answer = ("ok " + sums.size() + " " + checksum.getValue()).getBytes();
            exchange.sendResponseHeaders(200, answer.length);
            exchange.getResponseBody().write(answer);
            exchange.close();
        });
        server.setExecutor(Executors.newFixedThreadPool(8));
        server.start();
        System.out.println("port " + server.getAddress().getPort());
    }
}
