// Compiled code, several threads of garbage, timers and an HTTP server; judges itself when it ends.
//
// Usage: Work FOLDER PORT. GET /next: one more than the last time. GET /state: counters that only ever grow.

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.PrintWriter;
import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

public class Work {
    static final int WORKERS = 3;
    static final int BOX = 3000;
    static final AtomicLong next = new AtomicLong(), rounds = new AtomicLong(), ticks = new AtomicLong();
    static final AtomicLong lines = new AtomicLong(), problems = new AtomicLong();
    static final CountDownLatch ended = new CountDownLatch(WORKERS + 1);
    static volatile boolean stopping;

    static void expect(boolean good, String text) {
        if (!good) {
            problems.incrementAndGet();
            System.err.println(text);
        }
    }

    /** The same arithmetic each round, with the same result: hot enough to be compiled. */
    static long mix(long seed) {
        for (int step = 0; step < 20_000; step++) {
            seed = seed * 6364136223846793005L + 1442695040888963407L;
            seed ^= seed >>> 29;
        }
        return seed;
    }

    /** Fills maps, checks them and throws them away; keeps some for longer, so that they grow old. */
    static void litter(int id) {
        Map<Long, long[]> old = new HashMap<>();
        long expected = mix(id);
        for (long round = 0; !stopping; round++) {
            Map<Long, String> box = new HashMap<>();
            for (long key = 0; key < BOX; key++) box.put(key, Long.toString(key * round + id));
            for (var entry : box.entrySet()) {
                String value = Long.toString(entry.getKey() * round + id);
                expect(value.equals(entry.getValue()), "worker " + id + " found " + entry);
            }
            old.put(round % 200, new long[] {round, mix(id)});
            for (var entry : old.entrySet()) {
                long[] kept = entry.getValue();
                expect(kept[0] % 200 == entry.getKey() && kept[1] == expected, "worker " + id + " lost " + kept[0]);
            }
            rounds.incrementAndGet();
        }
        ended.countDown();
    }

    static void write(Path path) {
        try (PrintWriter out = new PrintWriter(Files.newBufferedWriter(path))) {
            while (!stopping) {
                out.println(lines.incrementAndGet());
                out.flush();
                Thread.sleep(1);
            }
            out.close();
            List<String> found = Files.readAllLines(path);
            expect(found.size() == lines.get(), found.size() + " lines of " + lines);
            for (int n = 0; n < found.size(); n++) {
                expect(found.get(n).equals(Integer.toString(n + 1)), "line " + n + " is " + found.get(n));
            }
        } catch (IOException | InterruptedException problem) {
            expect(false, "writing: " + problem);
        }
        ended.countDown();
    }

    static void answer(HttpExchange exchange, String text) throws IOException {
        byte[] bytes = text.getBytes(StandardCharsets.US_ASCII);
        exchange.sendResponseHeaders(200, bytes.length);
        exchange.getResponseBody().write(bytes);
        exchange.close();
    }

    static long collections() {
        long count = 0;
        for (GarbageCollectorMXBean bean : ManagementFactory.getGarbageCollectorMXBeans()) {
            count += bean.getCollectionCount();
        }
        return count;
    }

    static String state() {
        return problems + " " + rounds + " " + ticks + " " + lines + " " + collections();
    }

    static void judge() {
        stopping = true;
        try {
            expect(ended.await(50, TimeUnit.SECONDS), "a thread does not end");
        } catch (InterruptedException problem) {
            expect(false, "judging: " + problem);
        }
        System.out.println("judged " + state());
        System.out.flush();
        Runtime.getRuntime().halt(problems.get() == 0 ? 0 : 1);
    }

    public static void main(String[] arguments) throws Exception {
        Path folder = Path.of(arguments[0]);
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[1])), 50);
        server.createContext("/next", exchange -> answer(exchange, Long.toString(next.incrementAndGet())));
        server.createContext("/state", exchange -> answer(exchange, state()));
        server.setExecutor(Executors.newFixedThreadPool(2));
        for (int id = 0; id < WORKERS; id++) {
            int number = id;
            new Thread(() -> litter(number), "litter " + id).start();
        }
        new Thread(() -> write(folder.resolve("lines")), "lines").start();
        ScheduledExecutorService timer = Executors.newScheduledThreadPool(1);
        timer.scheduleAtFixedRate(ticks::incrementAndGet, 0, 5, TimeUnit.MILLISECONDS);
        Runtime.getRuntime().addShutdownHook(new Thread(Work::judge));
        server.start();
    }
}
