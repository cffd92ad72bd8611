package peers;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.source.SourceConnector;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.source.SourceTask;

/** Tasks for Kafka Connect that use almost no resources: each sleeps, and logs when it starts and stops. */
public class LightSource extends SourceConnector {
    private Map<String, String> config;

    @Override
    public String version() {
        return "1";
    }

    @Override
    public void start(Map<String, String> config) {
        this.config = config;
    }

    @Override
    public void stop() {}

    @Override
    public Class<? extends Task> taskClass() {
        return LightTask.class;
    }

    @Override
    public List<Map<String, String>> taskConfigs(int tasksMax) {
        List<Map<String, String>> configs = new ArrayList<>();
        for (int number = 0; number < tasksMax; number++) {
            Map<String, String> one = new HashMap<>(config);
            one.put("task", config.get("name") + "-" + number);
            configs.add(one);
        }
        return configs;
    }

    @Override
    public ConfigDef config() {
        return new ConfigDef();
    }

    public static class LightTask extends SourceTask {
        private static final Path DIARY = Path.of(System.getProperty("light.diary"));
        private static final long TICK_MS = 100;
        private String task;

        @Override
        public String version() {
            return "1";
        }

        @Override
        public void start(Map<String, String> config) {
            task = config.get("task");
            note("start");
        }

        @Override
        public List<SourceRecord> poll() throws InterruptedException {
            Thread.sleep(TICK_MS);
            return null;
        }

        @Override
        public void stop() {
            note("stop");
        }

        private void note(String what) {
            String line = System.currentTimeMillis() + " " + what + " " + task + "\n";
            try {
                Files.writeString(DIARY, line, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
            } catch (IOException problem) {
                throw new IllegalStateException(problem);
            }
        }
    }
}
