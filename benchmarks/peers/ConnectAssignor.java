package peers;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.common.utils.LogContext;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.connect.runtime.distributed.IncrementalCooperativeAssignor;
import org.apache.kafka.connect.runtime.distributed.WorkerCoordinator.ConnectorsAndTasks;
import org.apache.kafka.connect.storage.ClusterConfigState;
import org.apache.kafka.connect.util.ConnectorTaskId;

/**
 * Kafka Connect's own assignor, called as a leader calls it, with a scheduled rebalance delay of 0.
 *
 * <p>Each line of standard input is a request: "fleet WORKERS SIZES" starts with that number of workers, which run
 * nothing, and "event JOIN LEAVE SIZES" changes the settled state of that fleet. SIZES are the connectors' numbers of
 * tasks, separated by commas. The response is a line "FIRST ALL ROUNDS MOVES": milliseconds of this thread's processor
 * time for the first rebalance, and for all rebalances until no member is assigned or revoked a job; the number of these
 * rebalances; the number of revoked jobs.
 */
public class ConnectAssignor {
    private static final int ROUNDS_MAX = 100;
    private static final ThreadMXBean CLOCK = ManagementFactory.getThreadMXBean();

    private ClusterConfigState settledConfig = ClusterConfigState.EMPTY;
    private Map<String, ConnectorsAndTasks> settledMembers = Map.of();

    public static void main(String[] arguments) throws Exception {
        ConnectAssignor peer = new ConnectAssignor();
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            String[] words = line.split(" ");
            System.out.println(words[0].equals("fleet") ? peer.fleet(words) : peer.event(words));
        }
    }

    private String fleet(String[] words) throws Exception {
        settledConfig = configured(words[2]);
        Group group = new Group(Map.of());
        group.join(Integer.parseInt(words[1]));
        String answer = group.settle(settledConfig);
        settledMembers = group.members;
        return answer;
    }

    private String event(String[] words) throws Exception {
        Group group = new Group(settledMembers);
        group.round(settledConfig);  // so that it remembers who was here
        group.leave(Integer.parseInt(words[2]));
        group.join(Integer.parseInt(words[1]));
        return group.settle(configured(words[3]));
    }

    private static ClusterConfigState configured(String sizes) {
        Map<String, Integer> counts = new HashMap<>();
        Map<String, Map<String, String>> configs = new HashMap<>();
        int number = 0;
        for (String size : sizes.split(",")) {
            String name = String.format("connector-%05d", number++);
            if (!size.equals("-")) {  // one that has been deleted
                counts.put(name, Integer.parseInt(size));
                configs.put(name, Map.of());
            }
        }
        return new ClusterConfigState(
                1, null, counts, configs, Map.of(), Map.of(), Map.of(), Map.of(), Map.of(), Set.of(), Set.of());
    }

    /** The members of a group, and the leader's assignor. */
    private static class Group {
        private final Map<String, ConnectorsAndTasks> members;
        private final IncrementalCooperativeAssignor assignor =
                new IncrementalCooperativeAssignor(new LogContext(), Time.SYSTEM, 0);
        private final Method perform;
        private int generation = 0;
        private int named = 0;
        private double tookMs = 0;
        private int moves = 0;

        Group(Map<String, ConnectorsAndTasks> members) throws Exception {
            this.members = new TreeMap<>();
            members.forEach((name, jobs) -> this.members.put(name, running(jobs.connectors(), jobs.tasks())));
            named = members.size();
            perform = IncrementalCooperativeAssignor.class.getDeclaredMethod(
                    "performTaskAssignment", ClusterConfigState.class, int.class, int.class, Map.class);
            perform.setAccessible(true);
        }

        void join(int workers) {
            for (int number = 0; number < workers; number++) {
                members.put(String.format("worker-%05d", named++), running(Set.of(), Set.of()));
            }
        }

        void leave(int workers) {
            new ArrayList<>(members.keySet()).subList(0, workers).forEach(members::remove);
        }

        String settle(ClusterConfigState configured) throws Exception {
            tookMs = 0;
            moves = 0;
            boolean more = round(configured);
            double firstMs = tookMs;
            int rounds = 1;
            while (more && rounds < ROUNDS_MAX) {
                double beforeMs = tookMs;
                more = round(configured);
                if (more) {
                    rounds++;
                } else {
                    tookMs = beforeMs;  // the last rebalance changed nothing and is not counted
                }
            }
            return String.format("%.3f %.3f %d %d", firstMs, tookMs, rounds, moves);
        }

        /** Runs one rebalance. Returns whether a member was assigned or revoked a job. */
        boolean round(ClusterConfigState configured) throws Exception {
            int last = generation++;
            long startedNs = CLOCK.getCurrentThreadCpuTime();
            Object answer = perform.invoke(assignor, configured, last == 0 ? -1 : last, generation, members);
            tookMs += (CLOCK.getCurrentThreadCpuTime() - startedNs) / 1e6;
            boolean told = false;
            for (Map.Entry<String, ConnectorsAndTasks> member : members.entrySet()) {
                Set<String> connectors = new HashSet<>(member.getValue().connectors());
                Set<ConnectorTaskId> tasks = new HashSet<>(member.getValue().tasks());
                Collection<?> revokedConnectors = of(answer, "newlyRevokedConnectors", member.getKey());
                Collection<?> revokedTasks = of(answer, "newlyRevokedTasks", member.getKey());
                Collection<?> assignedConnectors = of(answer, "newlyAssignedConnectors", member.getKey());
                Collection<?> assignedTasks = of(answer, "newlyAssignedTasks", member.getKey());
                moves += revokedConnectors.size() + revokedTasks.size();
                told |= !revokedConnectors.isEmpty() || !revokedTasks.isEmpty();
                told |= !assignedConnectors.isEmpty() || !assignedTasks.isEmpty();
                connectors.removeAll(new HashSet<>(revokedConnectors));
                tasks.removeAll(new HashSet<>(revokedTasks));
                assignedConnectors.forEach(connector -> connectors.add((String) connector));
                assignedTasks.forEach(task -> tasks.add((ConnectorTaskId) task));
                member.setValue(running(connectors, tasks));
            }
            return told;
        }

        /** New objects for each group, since the assignor changes its arguments. */
        private static ConnectorsAndTasks running(Collection<String> connectors, Collection<ConnectorTaskId> tasks) {
            return new ConnectorsAndTasks.Builder().with(connectors, tasks).build();
        }

        private static Collection<?> of(Object answer, String what, String member) throws Exception {
            Method method = answer.getClass().getMethod(what, String.class);
            method.setAccessible(true);
            return (Collection<?>) method.invoke(answer, member);
        }
    }
}
