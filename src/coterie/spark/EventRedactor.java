// Compiled by Janino at the start of a worker (redacted_events.py). Janino infers no types of lambdas and generics.
package coterie.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.fasterxml.jackson.databind.node.TextNode;
import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.SparkFirehoseListener;
import org.apache.spark.scheduler.AsyncEventQueue;
import org.apache.spark.scheduler.LiveListenerBus;
import org.apache.spark.scheduler.ReplayListenerBus;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.sql.internal.SharedState;
import org.apache.spark.sql.streaming.StreamingQueryListener;
import org.apache.spark.sql.streaming.ui.StreamingQueryStatusListener;
import org.apache.spark.status.ElementTrackingStore;
import org.apache.spark.util.JsonProtocol;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

public final class EventRedactor {
    private static final Logger LOG = LoggerFactory.getLogger(EventRedactor.class);
    private final ObjectMapper mapper = new ObjectMapper();
    private final String mask;
    // Null while there is no secret.
    private volatile Pattern secrets;

    public EventRedactor(String mask) {
        this.mask = Matcher.quoteReplacement(mask);
    }

    public void setSecrets(String textsJson) throws Exception {
        StringBuilder regex = new StringBuilder();
        for (Iterator texts = mapper.readTree(textsJson).elements(); texts.hasNext(); ) {
            regex.append(regex.length() == 0 ? "" : "|").append(Pattern.quote(((JsonNode) texts.next()).asText()));
        }
        secrets = regex.length() == 0 ? null : Pattern.compile(regex.toString());
    }

    public void install(SparkContext context, SharedState sharedState) throws Exception {
        // SharedState adds the listener of the page of queries to a queue, so it exists before the queues are read.
        if (sharedState.streamingQueryStatusListener().isDefined()) {
            StreamingQueryStatusListener original =
                (StreamingQueryStatusListener) sharedState.streamingQueryStatusListener().get();
            Field field = SharedState.class.getDeclaredField("streamingQueryStatusListener");
            field.setAccessible(true);
            field.set(sharedState, new scala.Some(new StreamingListener(original.conf(), original.store(), this)));
        }
        // An event of now would reach the listeners twice: directly, and through the new listener.
        context.listenerBus().waitUntilEmpty();
        Field field = LiveListenerBus.class.getDeclaredField("queues");
        field.setAccessible(true);
        for (Object each : (List) field.get(context.listenerBus())) {
            AsyncEventQueue queue = (AsyncEventQueue) each;
            if (queue.name().equals("appStatus") || queue.name().equals("eventLog")) {
                List originals = new ArrayList(queue.listeners());
                // Added before the originals are removed: a queue without listeners would drop events.
                queue.addListener(new Listener(originals, this));
                for (Object original : originals) {
                    queue.removeListener(original);
                }
            }
        }
    }

    // Returns null if the event cannot be redacted: then nothing shows it.
    public SparkListenerEvent redacted(SparkListenerEvent event) {
        Pattern pattern = secrets;
        if (pattern == null) {
            return event;
        }
        try {
            ObjectNode tree = (ObjectNode) mapper.readTree(JsonProtocol.sparkEventToJsonString(event));
            JsonNode eventType = tree.get("Event");
            JsonNode endType = tree.path("Task End Reason").get("Reason");
            JsonNode resultType = tree.path("Job Result").get("Result");
            if (!redact(tree, pattern)) {
                return event;
            }
            // A secret can be a common word. The names of types are kept, or the event could not be read from the JSON.
            tree.set("Event", eventType);
            if (endType != null) {
                ((ObjectNode) tree.get("Task End Reason")).set("Reason", endType);
            }
            if (resultType != null) {
                ((ObjectNode) tree.get("Job Result")).set("Result", resultType);
            }
            return JsonProtocol.sparkEventFromJson(mapper.writeValueAsString(tree));
        } catch (Exception error) {
            LOG.warn("Spark's UI and event log do not show an event of " + event.getClass() + ", because the search for"
                + " secrets in the event failed: " + error);
            return null;
        }
    }

    // Returns whether the node had a text with a secret.
    private boolean redact(JsonNode node, Pattern pattern) {
        boolean changed = false;
        if (node instanceof ObjectNode) {
            ObjectNode object = (ObjectNode) node;
            List names = new ArrayList();
            for (Iterator fields = object.fieldNames(); fields.hasNext(); ) {
                names.add(fields.next());
            }
            for (Object each : names) {
                String name = (String) each;
                JsonNode child = object.get(name);
                TextNode hidden = isMetric(name, child) ? null : hidden(child, pattern);
                if (hidden != null) {
                    object.set(name, hidden);
                }
                changed |= hidden != null || redact(child, pattern);
            }
        } else if (node instanceof ArrayNode) {
            ArrayNode array = (ArrayNode) node;
            for (int index = 0; index < array.size(); index++) {
                TextNode hidden = hidden(array.get(index), pattern);
                if (hidden != null) {
                    array.set(index, hidden);
                }
                changed |= hidden != null || redact(array.get(index), pattern);
            }
        }
        return changed;
    }

    // Whether the text is the value of a metric, which Spark reads as a number.
    private static boolean isMetric(String name, JsonNode node) {
        return (name.equals("Update") || name.equals("Value")) && node.asText().matches("-?[0-9]+");
    }

    // Returns the text of the node without secrets; null if it is no text, or contains none.
    private TextNode hidden(JsonNode node, Pattern pattern) {
        if (!node.isTextual()) {
            return null;
        }
        Matcher matcher = pattern.matcher(node.asText());
        return matcher.find() ? TextNode.valueOf(matcher.replaceAll(mask)) : null;
    }

    static final class Listener extends SparkFirehoseListener {
        private final ReplayListenerBus originals = new ReplayListenerBus(Integer.MAX_VALUE);
        private final EventRedactor redactor;

        Listener(List originals, EventRedactor redactor) {
            this.redactor = redactor;
            for (Object original : originals) {
                this.originals.addListener(original);
            }
        }

        public void onEvent(SparkListenerEvent event) {
            SparkListenerEvent redacted = redactor.redacted(event);
            if (redacted != null) {
                originals.postToAll(redacted);
            }
        }
    }

    static final class StreamingListener extends StreamingQueryStatusListener {
        private final EventRedactor redactor;

        StreamingListener(SparkConf conf, ElementTrackingStore store, EventRedactor redactor) {
            super(conf, store);
            this.redactor = redactor;
        }

        public void onQueryStarted(StreamingQueryListener.QueryStartedEvent event) {
            SparkListenerEvent redacted = redactor.redacted(event);
            if (redacted != null) {
                super.onQueryStarted((StreamingQueryListener.QueryStartedEvent) redacted);
            }
        }

        public void onQueryProgress(StreamingQueryListener.QueryProgressEvent event) {
            SparkListenerEvent redacted = redactor.redacted(event);
            if (redacted != null) {
                super.onQueryProgress((StreamingQueryListener.QueryProgressEvent) redacted);
            }
        }

        public void onQueryTerminated(StreamingQueryListener.QueryTerminatedEvent event) {
            SparkListenerEvent redacted = redactor.redacted(event);
            if (redacted != null) {
                super.onQueryTerminated((StreamingQueryListener.QueryTerminatedEvent) redacted);
            }
        }
    }
}
