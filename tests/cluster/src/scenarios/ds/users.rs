//! Unmodified programs with all sockets of both nodes switched (`extlctl enable`). Their results
//! must be right and their data must bypass TCP. The full run repeats each program by TCP, for
//! example against a node without the module.

use crate::cluster::{full, Lab, Running, PATIENCE};
use crate::scenarios::ds::sockets::{bypass, known, rules_kept, REMOVED};
use crate::scenarios::{
    guest,
    node::{node, value, volume},
    on_pair,
};
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::time::Duration;

/// Maximum duration of one program.
const LONG: Duration = Duration::from_secs(300);

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("af_extl::user_redis", |lab| switched(lab, 62, redis)).stock_only(),
        on_pair("af_extl::user_iperf3", |lab| switched(lab, 10, iperf3)).stock_only(),
        on_pair("af_extl::user_nginx", |lab| switched(lab, 106, nginx)).stock_only(),
        on_pair("af_extl::user_go", |lab| switched(lab, 12, go)).stock_only(),
        on_pair("af_extl::user_python", |lab| switched(lab, 26, python)).stock_only(),
        on_pair("af_extl::user_memcached", |lab| switched(lab, 1, memcached)).stock_only(),
        on_pair("af_extl::user_netperf", |lab| switched(lab, 12, netperf)).stock_only(),
        on_pair("af_extl::user_sockperf", |lab| switched(lab, 4, sockperf)).stock_only(),
        on_pair("af_extl::user_rsync", |lab| switched(lab, 2, rsync)).stock_only(),
        on_pair("af_extl::user_postgresql", |lab| {
            switched(lab, 7, postgresql)
        })
        .stock_only(),
        on_pair("af_extl::user_mpi", |lab| switched(lab, 10, mpi)).stock_only(),
        on_pair("af_extl::user_java", |lab| switched(lab, 3, java)).stock_only(),
    ]
}

/// Runs `f` and checks that it made at least `least` direct connections. The full run repeats `f`
/// three times by TCP: only the client's node switched, only the server's, and a node without the
/// module. Restores the nodes.
pub(super) fn switched(lab: &Lab, least: u64, f: fn(&Lab) -> Result<()>) -> Result<()> {
    for n in 0..2 {
        guest::install(lab, n)?;
    }
    let mut done = (0..2)
        .try_for_each(|n| {
            bypass(lab, n)?;
            lab.ok(n, "extlctl enable").map(drop)
        })
        .and_then(|()| known(lab))
        .and_then(|()| past(lab, least, f))
        .and_then(|()| rules_kept(lab));
    if done.is_ok() && full() {
        done = lab
            .ok(1, "extlctl disable")
            .and_then(|_| by_tcp(lab, f, 0, &["no-listener"]))
            .and_then(|()| lab.ok(0, "extlctl disable"))
            .and_then(|_| lab.ok(1, "extlctl enable"))
            .and_then(|_| by_tcp(lab, f, 1, &["not-asked"]));
    }
    if done.is_ok() && full() {
        let gone = format!(
            "extlctl disable && echo 'install af_extl /bin/false' >/etc/modprobe.d/extl.conf && {REMOVED}"
        );
        done = lab
            .ok(0, "extlctl enable")
            .and_then(|_| lab.ok(1, &gone))
            .and_then(|_| by_tcp(lab, f, 0, &["silent", "known-silent"]));
    }
    for n in 0..2 {
        let line = format!(
            "extlctl disable --all; rm -f /etc/modprobe.d/extl.conf /etc/modprobe.d/tuned.conf; {REMOVED} && modprobe af_extl"
        );
        lab.ok(n, &line)?;
    }
    done
}

/// Runs `f`, whose data TCP must carry. Sockets of node `number` must report one of `reasons`.
fn by_tcp(lab: &Lab, f: fn(&Lab) -> Result<()>, number: usize, reasons: &[&str]) -> Result<()> {
    let fallbacks = || -> Result<u64> {
        reasons.iter().try_fold(0, |sum, reason| {
            Ok(sum + counter(lab, number, &format!("fallback-{reason}"))?)
        })
    };
    // Counts direct connections of the other node, with or without the module. Connections of node
    // `number` with itself do not count.
    let direct = || -> Result<Option<u64>> {
        let said = lab.sh_for(1 - number, "cat /proc/net/extl_stat", PATIENCE)?;
        Ok((said.status == 0).then(|| value(&said.stdout, "Waiting+UseStreams").unwrap_or(0)))
    };
    let before = (fallbacks()?, direct()?);
    f(lab).with_context(|| format!("by TCP, {reasons:?}"))?;
    let new = fallbacks()? - before.0;
    ensure!(new > 0, "no connection of node {number} with {reasons:?}");
    let now = direct()?;
    ensure!(now == before.1, "bypassed TCP ({reasons:?}): {now:?}");
    lab.until("connections are released", PATIENCE, |lab| {
        Ok(counter(lab, number, "sockets")? == 0)
    })
}

/// Runs `f`, whose connections between the nodes must bypass TCP.
fn past(lab: &Lab, least: u64, f: fn(&Lab) -> Result<()>) -> Result<()> {
    let fallbacks = |n: usize| -> Result<Vec<String>> {
        let text = lab.ok(n, "cat /proc/net/extl_stat")?;
        let mine = text.lines().filter(|l| {
            // Connections with another host, or of a node with itself by lo, are not counted here.
            // A client that closes its connection before it is accepted or confirmed has withdrawn
            // its request. If such a connection uses TCP, the client's node counts that.
            l.starts_with("fallback-")
                && !l.starts_with("fallback-no-route")
                && !l.starts_with("fallback-not-asked")
                && !l.starts_with("fallback-client-fell-back")
        });
        Ok(mine.map(str::to_owned).collect())
    };
    let direct = counter(lab, 0, "Waiting+UseStreams")?;
    let before = [fallbacks(0)?, fallbacks(1)?];
    f(lab)?;
    let after = [fallbacks(0)?, fallbacks(1)?];
    ensure!(before == after, "by TCP: {before:?}, then {after:?}");
    let new = counter(lab, 0, "Waiting+UseStreams")? - direct;
    ensure!(new >= least, "{new} connections bypassed TCP, not {least}");
    println!("        {new} connections bypassed TCP");
    lab.until("connections are released", PATIENCE, |lab| {
        Ok(counter(lab, 0, "sockets")? == 0 && counter(lab, 1, "sockets")? == 0)
    })
}

/// Returns a counter of `/proc/net/extl_stat`.
pub(super) fn counter(lab: &Lab, number: usize, name: &str) -> Result<u64> {
    let text = lab.ok(number, "cat /proc/net/extl_stat")?;
    value(&text, name).with_context(|| format!("no {name} in {text}"))
}

/// Starts a server on node 1 and waits until it listens. First waits for the end of an earlier
/// server, which must not be mistaken for the new one.
fn serve(lab: &Lab, line: &str, port: u32) -> Result<Running> {
    let listens = format!("ss -ltn | grep -q ':{port} '");
    node(lab, 1).until("the port is free", &format!("! {listens}"))?;
    let server = lab.spawn(1, line)?;
    node(lab, 1).until("it listens", &listens)?;
    Ok(server)
}

/// Returns the output of a command on node 0.
fn ask(lab: &Lab, line: &str) -> Result<String> {
    lab.ok_for(0, &format!("({line}) 2>&1"), LONG)
}

/// Creates files of several sizes in a directory of a node.
fn files(lab: &Lab, number: usize, directory: &str) -> Result<()> {
    let line = format!(
        "mkdir -p {directory} && cd {directory} && for n in 0 1 100 5000 70000 3000000; do head -c $n /dev/urandom >f$n; done && chmod -R a+rX ."
    );
    lab.ok(number, &line).map(drop)
}

/// Downloads the files of node 1 by HTTP and compares them.
fn compare(lab: &Lab, port: u32) -> Result<()> {
    let there = lab.ok(1, "cd /tmp/www && sha256sum f*")?;
    let here = ask(
        lab,
        &format!(
            "mkdir -p /tmp/fetched && cd /tmp/fetched && rm -f * && for n in 0 1 100 5000 70000 3000000; do \
             curl -sSf -o f$n http://node1:{port}/f$n || exit 1; done; sha256sum f*"
        ),
    )?;
    ensure!(here == there, "{here} is not {there}");
    Ok(())
}

/// redis works, and a large value comes back unchanged.
fn redis(lab: &Lab) -> Result<()> {
    let server = serve(
        lab,
        "exec redis-server --port 7820 --bind 0.0.0.0 --save '' --protected-mode no >/dev/null",
        7820,
    )?;
    let said = ask(
        lab,
        "head -c 3000000 /dev/urandom >/tmp/value && redis-cli -h node1 -p 7820 -x set name </tmp/value && \
         redis-cli -h node1 -p 7820 --raw get name | head -c 3000000 | cmp - /tmp/value; echo $?",
    )?;
    ensure!(said.lines().last() == Some("0"), "{said}");
    let n = volume(500, 1000);
    let said = ask(
        lab,
        &format!("redis-benchmark -h node1 -p 7820 -t set,get,lrange -n {n} -c 20 -d 1000 -q"),
    )?;
    ensure!(said.matches("requests per second").count() >= 3, "{said}");
    server.stop();
    Ok(())
}

/// iperf3 works in both directions and with several streams.
fn iperf3(lab: &Lab) -> Result<()> {
    for options in ["-n 8M", "-R -n 8M", "--bidir -t 2", "-P 4 -t 2 -Z"] {
        // Each client gets a new server, because a server rejects clients while it is busy with the
        // previous client.
        let server = serve(lab, "exec iperf3 -s -1 -p 7821 >/dev/null", 7821)?;
        let said = ask(lab, &format!("iperf3 -c node1 -p 7821 {options} --json"))?;
        ensure!(!said.contains("\"error\""), "{options}: {said}");
        server.stop();
    }
    Ok(())
}

/// nginx with sendfile works with the client ab.
fn nginx(lab: &Lab) -> Result<()> {
    files(lab, 1, "/tmp/www")?;
    let conf = "daemon off; pid /tmp/nginx.pid; worker_processes 2; error_log /tmp/nginx.log; events { worker_connections 200; } \
         http { access_log off; sendfile on; tcp_nopush on; server { listen 7801; root /tmp/www; } }";
    lab.ok(
        1,
        &format!("mkdir -p /var/log/nginx /var/lib/nginx && echo '{conf}' >/tmp/nginx.conf"),
    )?;
    let server = serve(lab, "exec nginx -c /tmp/nginx.conf", 7801)?;
    compare(lab, 7801).with_context(|| lab.ok(1, "cat /tmp/nginx.log").unwrap_or_default())?;
    for (options, file) in [
        ("-c 10", "f5000"),
        ("-k -c 10", "f70000"),
        ("-k -c 4", "f0"),
    ] {
        let n = volume(100, 2000);
        let said = ask(
            lab,
            &format!("ab -q -n {n} {options} http://node1:7801/{file}"),
        )?;
        ensure!(
            value(&said, "Complete requests") == Some(n)
                && value(&said, "Failed requests") == Some(0)
                && !said.contains("Non-2xx"),
            "{said}"
        );
    }
    lab.ok(1, "kill $(cat /tmp/nginx.pid)")?;
    server.stop();
    Ok(())
}

/// A server and a client in Go work: caddy and hey.
fn go(lab: &Lab) -> Result<()> {
    files(lab, 1, "/tmp/www")?;
    let server = serve(
        lab,
        "exec env HOME=/tmp XDG_DATA_HOME=/tmp XDG_CONFIG_HOME=/tmp caddy file-server --root /tmp/www --listen :7802 >/dev/null 2>&1",
        7802,
    )?;
    compare(lab, 7802)?;
    let n = volume(100, 2000);
    let said = ask(lab, &format!("hey -n {n} -c 10 http://node1:7802/f5000"))?;
    ensure!(
        said.contains(&format!("[200]\t{n} responses")) && !said.contains("Error"),
        "{said}"
    );
    server.stop();
    Ok(())
}

/// Python works: http.server, and asyncio at both ends.
fn python(lab: &Lab) -> Result<()> {
    files(lab, 1, "/tmp/www")?;
    let server = serve(
        lab,
        "exec python3 -m http.server -d /tmp/www 7803 >/dev/null 2>&1",
        7803,
    )?;
    compare(lab, 7803)?;
    server.stop();
    let server = serve(
        lab,
        &format!("exec {} asyncio-serve 7804", guest::program("extl_users")),
        7804,
    )?;
    let said = ask(
        lab,
        &format!("{} asyncio node1 7804 20", guest::program("extl_users")),
    )?;
    ensure!(said == "same\n", "{said}");
    server.stop();
    Ok(())
}

/// memcached works with a client of this test.
fn memcached(lab: &Lab) -> Result<()> {
    let server = serve(
        lab,
        "exec memcached -u memcache -p 7805 -U 0 -l 0.0.0.0",
        7805,
    )?;
    let said = ask(
        lab,
        &format!(
            "{} memcached node1 7805 {}",
            guest::program("extl_users"),
            volume(100, 2000)
        ),
    )?;
    ensure!(said == "same\n", "{said}");
    server.stop();
    Ok(())
}

/// netperf works: streams in both directions, requests, connections.
fn netperf(lab: &Lab) -> Result<()> {
    let server = serve(lab, "exec netserver -D -p 7806 >/dev/null", 7806)?;
    for test in [
        "TCP_STREAM",
        "TCP_MAERTS",
        "TCP_RR",
        "TCP_CRR",
        "TCP_SENDFILE",
    ] {
        let file = match test {
            "TCP_SENDFILE" => "-F /usr/bin/python3",
            _ => "",
        };
        let seconds = volume(1, 10);
        let line = format!("netperf -H node1 -p 7806 -P 0 -l {seconds} {file} -t {test}");
        let said = ask(lab, &line)?;
        // The rate is the last word of the first line. Request tests print a second line with
        // buffer sizes.
        let first = said.lines().find(|l| !l.trim().is_empty());
        let rate = first.and_then(|l| l.split_whitespace().last()?.parse::<f64>().ok());
        ensure!(rate.is_some_and(|rate| rate > 0.0), "{test}: {said}");
    }
    server.stop();
    Ok(())
}

/// sockperf works. It checks the data itself.
fn sockperf(lab: &Lab) -> Result<()> {
    let server = serve(lab, "exec sockperf sr --tcp -p 7807 >/dev/null", 7807)?;
    for size in [14, 112, 3000, 65000] {
        let seconds = volume(1, 10);
        let said = ask(
            lab,
            &format!(
                "sockperf pp --tcp -i 10.2.0.2 -p 7807 -t {seconds} -m {size} --data-integrity"
            ),
        )?;
        ensure!(
            said.contains("Valid Duration") && !said.contains("data integrity test failed"),
            "{size}: {said}"
        );
    }
    server.stop();
    Ok(())
}

/// rsync works over ssh and with the rsync server.
fn rsync(lab: &Lab) -> Result<()> {
    files(lab, 0, "/tmp/tree/a")?;
    lab.ok(0, "cp -r /tmp/tree/a /tmp/tree/b && cd /tmp/tree && mkdir -p c/d && cp a/f5000 c/d && ln -sf a l")?;
    let sums = "find . -type f | sort | xargs sha256sum";
    let here = lab.ok(0, &format!("cd /tmp/tree && {sums}"))?;
    lab.ok(1, "rm -rf /tmp/copy; mkdir -p /tmp/copy /run/sshd; printf 'use chroot = no\\nuid = root\\n[copy]\\npath = /tmp/copy\\nread only = no\\n' >/tmp/rsyncd.conf")?;
    let ssh = serve(lab, "exec /usr/sbin/sshd -D -p 7808", 7808)?;
    ask(lab, "rsync -a -e 'ssh -p 7808' /tmp/tree/ node1:/tmp/copy/")?;
    let there = lab.ok(1, &format!("cd /tmp/copy && {sums}"))?;
    ensure!(here == there, "over ssh: {here} is not {there}");
    ssh.stop();
    let own = serve(
        lab,
        "exec rsync --daemon --no-detach --port 7809 --config /tmp/rsyncd.conf",
        7809,
    )?;
    lab.ok(0, "head -c 50000 /dev/urandom >>/tmp/tree/b/f3000000")?;
    ask(lab, "rsync -a --port 7809 /tmp/tree/ node1::copy/")?;
    let here = lab.ok(0, &format!("cd /tmp/tree && {sums}"))?;
    let there = lab.ok(1, &format!("cd /tmp/copy && {sums}"))?;
    ensure!(here == there, "its own: {here} is not {there}");
    own.stop();
    Ok(())
}

/// PostgreSQL and pgbench work, and the balances agree afterwards.
fn postgresql(lab: &Lab) -> Result<()> {
    let bin = "/usr/lib/postgresql/17/bin";
    let user = "setpriv --reuid=postgres --regid=postgres --clear-groups";
    lab.ok_for(
        1,
        &format!(
            "rm -rf /tmp/pg && mkdir -p /tmp/pg && chown postgres:postgres /tmp/pg && cd /tmp/pg && \
             {user} {bin}/initdb -D /tmp/pg/data -A trust --no-locale -E UTF8 --no-sync >/tmp/pg/log 2>&1 || {{ cat /tmp/pg/log; exit 1; }}; \
             echo 'host all all 10.2.0.0/24 trust' >>/tmp/pg/data/pg_hba.conf"
        ),
        LONG,
    )?;
    let server = serve(
        lab,
        &format!(
            "cd /tmp/pg && exec {user} {bin}/postgres -D /tmp/pg/data -p 7810 -c listen_addresses='*' -c unix_socket_directories='' -c fsync=off -c jit=off -c shared_buffers=16MB >/tmp/pg/log 2>&1"
        ),
        7810,
    )?;
    let to = "-h node1 -p 7810 -U postgres";
    let n = volume(20, 100);
    node(lab, 1).until("it accepts connections", &format!("{bin}/pg_isready {to}"))?;
    ask(
        lab,
        &format!("{bin}/pgbench {to} -i -q --no-vacuum postgres"),
    )?;
    let said = ask(
        lab,
        &format!("{bin}/pgbench {to} -n -c 4 -j 2 -t {n} postgres"),
    )?;
    let all = format!("actually processed: {}/{}", 4 * n, 4 * n);
    ensure!(said.contains(&all), "{said}");
    let sums = ask(
        lab,
        &format!(
            "{bin}/psql {to} -At -c 'select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history), (select count(*) from pgbench_history)' postgres"
        ),
    )?;
    ensure!(sums.trim() == format!("t|{}", 4 * n), "{sums}");
    lab.ok(1, "kill -INT $(head -1 /tmp/pg/data/postmaster.pid)")?;
    server.wait(PATIENCE)?;
    Ok(())
}

/// OpenMPI over TCP works: two processes on each node communicate in all modes.
fn mpi(lab: &Lab) -> Result<()> {
    lab.ok(1, "mkdir -p /run/sshd")?;
    let ssh = serve(lab, "exec /usr/sbin/sshd -D -p 7812", 7812)?;
    let said = ask(
        lab,
        &format!(
            "mpirun.openmpi --allow-run-as-root --oversubscribe -np 4 --host node0:2,node1:2 --prtemca plm_ssh_agent 'ssh -p 7812' --mca pml ob1 --mca btl tcp,self \
             --mca btl_tcp_if_include exn0 {}",
            guest::program("extl_mpi")
        ),
    )?;
    ensure!(said.contains("same\n"), "{said}");
    ssh.stop();
    Ok(())
}

/// A server and a client in Java work.
fn java(lab: &Lab) -> Result<()> {
    let run = "/usr/lib/jvm/java-21-openjdk-amd64/bin/java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto -Xmx128m -cp /usr/share/java/bsh.jar bsh.Interpreter /tmp/guest";
    let server = serve(lab, &format!("exec {run}/extl_serve.bsh 7811"), 7811)?;
    let said = ask(lab, &format!("{run}/extl_ask.bsh node1 7811"))?;
    ensure!(said == "same\n", "{said}");
    server.stop();
    Ok(())
}
