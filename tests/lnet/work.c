// SPDX-License-Identifier: GPL-2.0-only
/* A service and its clients: small requests, and bulk data in both directions. See stand.h. */
#include <linux/delay.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/random.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/workqueue.h>
#include "stand.h"

/* Size of a service's buffers in bytes. */
#define ASK_MOST 16384
/* Maximum number of bytes that an interface returns to a ping. */
#define PING_BYTES 8192
#define PING_SEED 0x70696e67

enum { OP_PING, OP_READ, OP_WRITE, OPS };

static const char *const op_names[OPS] = { "ping", "read", "write" };

/* A request, followed by bytes with its pattern. */
struct ask {
	__le32 op;
	__le32 ack; /* nonzero: bulk data that are PUT request an ACK */
	__le64 seed;
	__le64 match;
	__le32 size;
	__le32 frags;
	__le32 offset;
	__le32 heap;
	__le32 answer; /* size of the answer in bytes */
	__le32 from; /* start of a GET in the memory, in bytes */
	__le32 wait_ms;
	__le32 unchecked;
};

/* Answer to a request. Bytes with the pattern follow it. */
struct answer {
	__le32 status;
	__le32 pad;
	__le64 wrong;
};

static struct workqueue_struct *service;
static atomic_t serving;
static unsigned int slow_ms;
static struct lnet_libmd *ping_md, *odd_md;
static bool stopping;
static atomic64_t cookies;
static struct lnet_libmd *buffers[1024];
static int nbuffers;

static struct stand_mem *plain(u32 size, bool unchecked)
{
	struct stand_shape shape = { .size = size, .unchecked = unchecked };

	return stand_mem_new(&shape, 0);
}

/* The service. */

struct job {
	struct work_struct work;
	struct lnet_libmd *buffer;
};

/* Transfers the bulk data of a request. Returns an error, and the number of wrong bytes in *bad. */
static int bulk(const struct ask *ask, const struct lnet_nid *client, unsigned long timeout, u64 *bad)
{
	struct stand_shape shape = { le32_to_cpu(ask->size), le32_to_cpu(ask->frags), le32_to_cpu(ask->offset), le32_to_cpu(ask->heap),
				     le32_to_cpu(ask->unchecked) };
	u64 seed = le64_to_cpu(ask->seed), match = le64_to_cpu(ask->match);
	struct lnet_libmd *md;
	int rc = 0;

	if (shape.size > LNET_MTU)
		return -EINVAL;
	md = stand_md_new(stand_mem_new(&shape, seed));
	if (!md)
		return -ENOMEM;
	if (le32_to_cpu(ask->op) == OP_READ) {
		bool ack = le32_to_cpu(ask->ack);

		if (!shape.unchecked)
			stand_mem_fill(md->mem, seed);
		rc = stand_put(md, client, PORTAL_BULK, match, seed, ack);
		if (!rc)
			rc = stand_md_wait(md, EV_SEND, timeout) ? md->status[EV_SEND] : -ETIME;
		if (!rc && ack)
			rc = stand_md_wait(md, EV_ACK, timeout) ? md->status[EV_ACK] : -ETIME;
	} else {
		rc = stand_get(md, client, PORTAL_BULK, match, le32_to_cpu(ask->from));
		if (!rc)
			rc = stand_md_wait(md, EV_SEND, timeout) ? md->status[EV_SEND] : -ETIME;
		if (!rc)
			rc = stand_md_wait(md, EV_REPLY, timeout) ? md->status[EV_REPLY] : -ETIME;
		if (!rc && !shape.unchecked) {
			*bad = stand_mem_wrong(md->mem, seed, le32_to_cpu(ask->from), md->len[EV_REPLY]);
			if (*bad)
				pr_err("lnet_stand: %llu of %u bytes that were got are wrong\n", *bad, shape.size);
		}
	}
	stand_md_free(md);
	return rc;
}

static void serve(struct work_struct *work)
{
	struct job *job = container_of(work, struct job, work);
	struct lnet_libmd *buffer = job->buffer, *md;
	struct lnet_nid client = buffer->from;
	unsigned long timeout;
	struct answer answer = {};
	struct ask ask;
	u32 len = buffer->len[EV_PUT], want;
	bool unchecked = false;
	u64 bad = 0;
	int rc = 0;

	kfree(job);
	/*
	 * The request has ended only when its message releases its last reference, which happens
	 * soon.
	 */
	stand_mem_read(buffer->mem, 0, &ask, sizeof(ask));
	if (buffer->status[EV_PUT] || len < sizeof(ask) || le32_to_cpu(ask.op) >= OPS) {
		rc = -EINVAL;
	} else if (ask.unchecked) {
		unchecked = true;
	} else {
		u64 seed = le64_to_cpu(ask.seed);

		/* All bytes after the header have the pattern. */
		stand_mem_part(buffer->mem, seed, sizeof(ask));
		bad = stand_mem_wrong(buffer->mem, seed, 0, len);
		if (bad)
			pr_err("lnet_stand: %llu of %u bytes of a request are wrong\n", bad, len);
	}
	if (READ_ONCE(slow_ms))
		msleep(READ_ONCE(slow_ms));
	/* Waits until the buffer is available for the next request. */
	wait_event_idle(buffer->wait, !READ_ONCE(buffer->refs));
	memset(buffer->got, 0, sizeof(buffer->got));
	buffer->threshold = 1;
	if (unchecked)
		stand_mem_blank_first(buffer->mem, len);
	else
		stand_mem_blank(buffer->mem);
	if (!READ_ONCE(stopping))
		stand_md_attach(buffer, PORTAL_ASK, 0);

	if (!rc) {
		timeout = msecs_to_jiffies(le32_to_cpu(ask.wait_ms));
		if (!bad && le32_to_cpu(ask.op) != OP_PING)
			rc = bulk(&ask, &client, timeout, &bad);
		want = clamp_t(u32, le32_to_cpu(ask.answer), sizeof(answer), LNET_MTU);
		md = stand_md_new(plain(want, unchecked));
		if (md) {
			if (!unchecked)
				stand_mem_fill(md->mem, ~le64_to_cpu(ask.seed));
			answer.status = cpu_to_le32(-rc);
			answer.wrong = cpu_to_le64(bad);
			stand_mem_write(md->mem, 0, &answer, sizeof(answer));
			if (!stand_put(md, &client, PORTAL_ANSWER, le64_to_cpu(ask.match), 0, false))
				stand_md_wait(md, EV_SEND, timeout);
			stand_md_free(md);
		}
	}
	atomic_dec(&serving);
}

/* Handles the arrival of a request in a buffer. */
static void asked(struct lnet_libmd *buffer, enum stand_event event)
{
	struct job *job;

	if (event != EV_PUT)
		return;
	job = kmalloc(sizeof(*job), GFP_NOFS | __GFP_NOFAIL);
	job->buffer = buffer;
	INIT_WORK(&job->work, serve);
	atomic_inc(&serving);
	queue_work(service, &job->work);
}

int stand_serve(char *options)
{
	int i, n = stand_number(options, "buffers", 64);

	WRITE_ONCE(slow_ms, stand_number(options, "slow", 0));
	WRITE_ONCE(stopping, false);
	if (n < 1 || n > ARRAY_SIZE(buffers))
		return -EINVAL;
	for (i = nbuffers; i < n; i++) {
		buffers[i] = stand_md_new(plain(ASK_MOST, false));
		if (!buffers[i])
			return -ENOMEM;
		buffers[i]->event = asked;
		nbuffers++;
		stand_md_attach(buffers[i], PORTAL_ASK, 0);
	}
	return 0;
}

int stand_serve_stop(void)
{
	int i;

	/*
	 * After this store, no more requests arrive. Running requests end, and held requests are
	 * dropped.
	 */
	WRITE_ONCE(stopping, true);
	do {
		flush_workqueue(service);
		for (i = 0; i < nbuffers; i++)
			stand_md_unlink(buffers[i]);
		stand_attached(-1);
		stand_flush_late();
	} while (atomic_read(&serving));
	for (i = 0; i < nbuffers; i++) {
		wait_event_idle(buffers[i]->wait, !READ_ONCE(buffers[i]->refs));
		flush_workqueue(service);
		stand_md_free(buffers[i]);
	}
	nbuffers = 0;
	stand_mem_forget();
	return 0;
}

/* Pings: GETs of the data that each interface exposes. */

int stand_ping(const char *name, char *options, struct seq_buf *out)
{
	u32 len = stand_number(options, "size", 272), offset = stand_number(options, "from", 0);
	unsigned long timeout = msecs_to_jiffies(stand_number(options, "timeout", 10000));
	long count = stand_number(options, "count", 1), i;
	struct lnet_libmd *md;
	struct lnet_nid nid;
	ktime_t start = ktime_get();
	u64 bad = 0;
	u32 want;
	int rc = 0;

	if (stand_str2nid(name, &nid) || len > LNET_MTU || offset > PING_BYTES)
		return -EINVAL;
	want = min(len, PING_BYTES - offset);
	for (i = 0; i < count && !rc && !fatal_signal_pending(current); i++) {
		md = stand_md_new(plain(len, false));
		if (!md)
			return -ENOMEM;
		rc = stand_get(md, &nid, PORTAL_PING, 0, offset);
		if (!rc)
			rc = stand_md_wait(md, EV_SEND, timeout) ? md->status[EV_SEND] : -ETIME;
		if (!rc)
			rc = stand_md_wait(md, EV_REPLY, timeout) ? md->status[EV_REPLY] : -ETIMEDOUT;
		if (!rc && md->len[EV_REPLY] != want)
			rc = -EMSGSIZE;
		if (!rc)
			bad += stand_mem_wrong(md->mem, PING_SEED, offset, want);
		stand_md_free(md);
	}
	seq_buf_printf(out, "answers %ld\nstatus %d\nwrong %llu\nus %lld\n", rc ? i - 1 : i, rc, bad, ktime_us_delta(ktime_get(), start));
	return 0;
}

/* Sends a message while another one is received. */
void stand_odd_send(struct lnet_ni *ni, const struct lnet_nid *to)
{
	/* No memory matches the message. */
	stand_put(odd_md, to, PORTAL_BULK, ~0ULL, 0, false);
}

/* A test: threads that send requests to a service. */

struct test {
	int op;
	struct lnet_nid to;
	struct stand_shape client, server;
	u32 min, max, ask, answer, from, want;
	bool ack, nomatch, random;
	u64 seed;
	long count, seconds;
	unsigned long timeout, patience, until;
	atomic_long_t done, failed, bytes, wrong, retried;
	atomic_t running;
	int first_error;
	bool stop;
	struct completion over;
	u64 most_us;
};

static u32 size_of(struct test *test, u64 *random)
{
	u32 size;

	if (test->min == test->max)
		return test->min;
	/* Makes small sizes as frequent as large sizes. */
	*random = stand_mix(*random);
	size = test->min + (*random >> 8) % (test->max - test->min + 1);
	return max(size >> (*random % 12), test->min);
}

static int one(struct test *test, u64 id)
{
	u64 seed = stand_mix(test->seed ^ id), random = seed, bad = 0;
	u64 match = atomic64_inc_return(&cookies) << 8;
	struct stand_shape mine = test->client, other = test->server;
	struct lnet_libmd *question, *reply, *data = NULL;
	struct answer answer;
	struct ask ask = {};
	u32 size = size_of(test, &random), has = size, moved = 0;
	bool unchecked = test->client.unchecked;
	int rc = -ENOMEM;

	if (test->random) {
		/* Each request has a different layout of its memory. */
		random = stand_mix(random);
		mine.frags = random & 3 ? 0 : min_t(u32, size, max_t(u32, DIV_ROUND_UP(size, PAGE_SIZE), 1 + (random >> 8) % 256));
		mine.offset = random & 4 ? (random >> 16) % PAGE_SIZE : 0;
		mine.heap = !mine.frags && !(random & 0x38);
		random = stand_mix(random);
		other.frags = random & 3 ? 0 : min_t(u32, size, max_t(u32, DIV_ROUND_UP(size, PAGE_SIZE), 1 + (random >> 8) % 256));
		other.offset = random & 4 ? (random >> 16) % PAGE_SIZE : 0;
		other.heap = !other.frags && !(random & 0x38);
	}
	question = stand_md_new(plain(clamp_t(u32, test->ask, sizeof(ask), ASK_MOST), unchecked));
	reply = stand_md_new(plain(clamp_t(u32, test->answer, sizeof(answer), LNET_MTU), unchecked));
	if (!question || !reply)
		goto out;
	if (test->op != OP_PING && !test->nomatch) {
		/* If LNet is to accept less than is sent, the memory is smaller than the data. */
		if (test->op == OP_READ && test->want != ~0U)
			has = min(test->want, size);
		mine.size = has;
		if (mine.frags > has)
			mine.frags = has;
		data = stand_md_new(stand_mem_new(&mine, seed));
		if (!data)
			goto out;
		if (test->op == OP_WRITE) {
			if (!unchecked)
				stand_mem_fill(data->mem, seed);
			data->put = false;
			data->get = true;
		}
		stand_md_attach(data, PORTAL_BULK, match);
	}
	stand_md_attach(reply, PORTAL_ANSWER, match);
	ask = (struct ask){
		.op = cpu_to_le32(test->op), .ack = cpu_to_le32(test->ack), .seed = cpu_to_le64(seed), .match = cpu_to_le64(match),
		.size = cpu_to_le32(size), .frags = cpu_to_le32(other.frags), .offset = cpu_to_le32(other.offset),
		.heap = cpu_to_le32(other.heap), .answer = cpu_to_le32(reply->mem->len), .from = cpu_to_le32(test->from),
		.wait_ms = cpu_to_le32(jiffies_to_msecs(test->timeout)), .unchecked = cpu_to_le32(unchecked),
	};
	if (!unchecked)
		stand_mem_fill(question->mem, seed);
	stand_mem_write(question->mem, 0, &ask, sizeof(ask));
	rc = stand_put(question, &test->to, PORTAL_ASK, 0, 0, false);
	if (rc)
		goto out;
	rc = stand_md_wait(question, EV_SEND, test->timeout) ? question->status[EV_SEND] : -ETIME;
	if (rc)
		goto out;
	rc = stand_md_wait(reply, EV_PUT, test->patience) ? reply->status[EV_PUT] : -ETIMEDOUT;
	if (rc)
		goto out;
	stand_mem_read(reply->mem, 0, &answer, sizeof(answer));
	rc = -(int)le32_to_cpu(answer.status);
	bad += le64_to_cpu(answer.wrong);
	if (rc)
		goto out;
	if (!unchecked) {
		stand_mem_part(reply->mem, ~seed, sizeof(answer));
		bad += stand_mem_wrong(reply->mem, ~seed, 0, reply->mem->len);
	}
	if (data && test->op == OP_READ) {
		rc = stand_md_wait(data, EV_PUT, test->timeout) ? data->status[EV_PUT] : -ETIMEDOUT;
		if (!rc && data->len[EV_PUT] != has)
			rc = -EMSGSIZE;
		moved = has;
		if (!rc && !unchecked)
			bad += stand_mem_wrong(data->mem, seed, 0, has);
	} else if (data) {
		rc = stand_md_wait(data, EV_GET, test->timeout) ? data->status[EV_GET] : -ETIMEDOUT;
		if (!rc && data->len[EV_GET] != size - min(test->from, size))
			rc = -EMSGSIZE;
		moved = data->len[EV_GET];
	}
	atomic_long_add(moved, &test->bytes);
out:
	if (bad) {
		atomic_long_add(bad, &test->wrong);
		pr_err("lnet_stand: %s %llu, %u bytes: %llu are wrong\n", op_names[test->op], id, size, bad);
	}
	stand_md_free(data);
	stand_md_free(question);
	stand_md_free(reply);
	return rc;
}

struct asker {
	struct test *test;
	long first, count;
};

static int ask_on(void *data)
{
	struct asker *asker = data;
	struct test *test = asker->test;
	long i;

	for (i = 0; !READ_ONCE(test->stop); i++) {
		ktime_t start = ktime_get();
		u64 us;
		int rc;

		if (test->seconds ? time_after(jiffies, test->until) : i >= asker->count)
			break;
		rc = one(test, asker->first + i);
		us = ktime_us_delta(ktime_get(), start);
		if (us > test->most_us)
			test->most_us = us;
		if (rc) {
			atomic_long_inc(&test->failed);
			cmpxchg(&test->first_error, 0, rc);
			/* Limits the rate of failing requests. */
			msleep(20);
		} else {
			atomic_long_inc(&test->done);
		}
	}
	kfree(asker);
	if (atomic_dec_and_test(&test->running))
		complete(&test->over);
	return 0;
}

static int parse_test(struct test *test, char *options)
{
	char buf[NIDBUF];
	const char *kind = stand_option(options, "kind", buf, sizeof(buf));

	for (test->op = 0; test->op < OPS; test->op++)
		if (kind && !strcmp(kind, op_names[test->op]))
			break;
	if (test->op == OPS || !stand_option(options, "to", buf, sizeof(buf)) || stand_str2nid(buf, &test->to))
		return -EINVAL;
	test->min = test->max = stand_number(options, "size", 4096);
	test->min = stand_number(options, "min", test->min);
	test->max = stand_number(options, "max", test->max);
	test->client.frags = stand_number(options, "frags", 0);
	test->client.offset = stand_number(options, "offset", 0);
	test->client.heap = stand_number(options, "heap", 0);
	test->server.frags = stand_number(options, "server_frags", 0);
	test->server.offset = stand_number(options, "server_offset", 0);
	test->server.heap = stand_number(options, "server_heap", 0);
	test->random = stand_number(options, "random", 0);
	test->client.unchecked = !stand_number(options, "check", 1);
	test->ask = stand_number(options, "ask", sizeof(struct ask));
	test->answer = stand_number(options, "answer", sizeof(struct answer));
	test->from = stand_number(options, "from", 0);
	test->want = stand_number(options, "want", ~0U);
	test->ack = stand_number(options, "ack", 0);
	test->nomatch = stand_number(options, "nomatch", 0);
	test->seed = stand_number(options, "seed", 1);
	test->count = stand_number(options, "count", 1);
	test->seconds = stand_number(options, "seconds", 0);
	test->timeout = msecs_to_jiffies(stand_number(options, "timeout", 60000));
	/*
	 * The service may wait for each of two messages, so its patience is longer than the
	 * time-out.
	 */
	test->patience = msecs_to_jiffies(stand_number(options, "patience", 3 * jiffies_to_msecs(test->timeout)));
	if (test->max > LNET_MTU || test->min > test->max)
		return -EINVAL;
	/* Reused memory consists of whole pages. */
	if (test->client.unchecked && (test->random || test->client.frags || test->client.offset || test->client.heap ||
				       test->server.frags || test->server.offset || test->server.heap))
		return -EINVAL;
	return 0;
}

int stand_test(char *options, struct seq_buf *out)
{
	struct test *test = kzalloc(sizeof(*test), GFP_KERNEL);
	long threads = stand_number(options, "threads", 1), i;
	ktime_t start;
	int rc;

	if (!test)
		return -ENOMEM;
	rc = parse_test(test, options);
	if (rc || threads < 1 || threads > 64) {
		kfree(test);
		return -EINVAL;
	}
	init_completion(&test->over);
	atomic_set(&test->running, 1);
	test->until = jiffies + test->seconds * HZ;
	start = ktime_get();
	for (i = 0; i < threads; i++) {
		struct asker *asker = kmalloc(sizeof(*asker), GFP_KERNEL);
		struct task_struct *task;

		if (!asker) {
			rc = -ENOMEM;
			break;
		}
		*asker = (struct asker){ test, i << 32, test->count / threads + (i < test->count % threads) };
		atomic_inc(&test->running);
		task = kthread_run(ask_on, asker, "lnet_stand_%ld", i);
		if (IS_ERR(task)) {
			atomic_dec(&test->running);
			kfree(asker);
			rc = PTR_ERR(task);
			break;
		}
	}
	if (!atomic_dec_and_test(&test->running) && wait_for_completion_killable(&test->over)) {
		WRITE_ONCE(test->stop, true);
		wait_for_completion(&test->over);
		rc = -EINTR;
	}
	seq_buf_printf(out, "done %ld\nfailed %ld\nbytes %ld\nwrong %ld\nerror %d\nus %lld\nmost_us %llu\n", atomic_long_read(&test->done),
		       atomic_long_read(&test->failed), atomic_long_read(&test->bytes), atomic_long_read(&test->wrong), test->first_error,
		       ktime_us_delta(ktime_get(), start), test->most_us);
	if (test->client.unchecked)
		stand_mem_forget();
	kfree(test);
	return rc;
}

int stand_work_init(void)
{
	u64 seed;

	/* A random seed makes cookies differ from those before the module was loaded again. */
	get_random_bytes(&seed, sizeof(seed));
	atomic64_set(&cookies, seed >> 8);
	service = alloc_workqueue("lnet_stand_service", WQ_UNBOUND, 256);
	ping_md = stand_md_new(plain(PING_BYTES, false));
	odd_md = stand_md_new(plain(100, false));
	if (!service || !ping_md || !odd_md) {
		if (service)
			destroy_workqueue(service);
		stand_md_free(ping_md);
		stand_md_free(odd_md);
		return -ENOMEM;
	}
	stand_mem_fill(ping_md->mem, PING_SEED);
	ping_md->put = false;
	ping_md->get = true;
	ping_md->threshold = -1;
	stand_md_attach(ping_md, PORTAL_PING, 0);
	return 0;
}

void stand_work_exit(void)
{
	stand_serve_stop();
	destroy_workqueue(service);
	stand_md_free(ping_md);
	stand_md_free(odd_md);
}
