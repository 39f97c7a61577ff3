"""A Java virtual machine with JIT compilation, threads, and frequent garbage collection."""
from lib.program import Job

SOURCE = r'''
import java.io.FileWriter;
import java.util.HashMap;
import java.util.concurrent.*;

public class Work {
    public static void main(String[] words) throws Exception {
        int steps = Integer.parseInt(System.getenv("FIELD_STEPS"));
        long pause = (long) (1000 * Double.parseDouble(System.getenv("FIELD_STEP_S")));
        ExecutorService pool = Executors.newFixedThreadPool(2);
        HashMap<Integer, Integer> table = new HashMap<>();
        try (FileWriter out = new FileWriter(System.getenv("FIELD_OUT"), true)) {
            int value = 1;
            for (int step = 1; step <= steps; step++) {
                final int now = value, at = step;
                value = pool.submit(() -> (now * 1021 + at) % 1000003).get();
                for (int i = 0; i < 2000; i++) table.put(i, new byte[i % 100].length + value);
                out.write(step + " " + value + "\n");
                out.flush();
                Thread.sleep(pause);
            }
        }
        pool.shutdown();
    }
}
'''


class Java(Job):
    name, group = "java", "language"
    needs = {"javac": "default-jdk-headless"}
    source, source_name = SOURCE, "Work.java"
    every, step_s = "300ms", 0.06

    def prepare(self):
        super().prepare()
        self.tool("javac", "-d", self.folder, self.path("Work.java"))

    def program(self):
        return ["java", "-Xmx64m", "-cp", self.folder, "Work"]
