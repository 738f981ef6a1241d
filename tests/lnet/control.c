// SPDX-License-Identifier: GPL-2.0-only
/*
 * /dev/lnet_stand: a program writes a command and reads its result from the same file. See stand.h.
 *
 *     net add NET INTERFACE [credits= peer_credits= peer_buffer_credits= peer_timeout= lnd.KEY=]
 *     net del NET [INTERFACE]      nets       counters       memory
 *     route add NET GATEWAY        routing 0|1               routes
 *
 *     fault EVERY [HEALTH]         odd NAME=THOUSANDTHS…
 *     ping NID [size= from= count= timeout=]
 *     serve [buffers= slow=]       serve stop
 *     test kind=ping|read|write to=NID […] (parse_test in work.c describes the options)
 */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/random.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include "stand.h"

#define RESULT 32768

struct session {
	size_t len;
	char result[RESULT];
};

unsigned int stand_odds[ODD_END];
const char *const stand_odd_names[ODD_END] = {
#define X(n) #n,
	STAND_ODDS(X)
#undef X
};
static const char *const count_names[] = {
#define X(n) #n,
	STAND_COUNTS(X)
#undef X
};

u64 stand_random(void)
{
	return get_random_u64();
}

bool stand_odd(enum stand_odd what)
{
	unsigned int odds = READ_ONCE(stand_odds[what]);

	return odds && get_random_u32_below(1000) < odds;
}

const char *stand_option(const char *options, const char *name, char *buf, size_t size)
{
	size_t n = strlen(name);
	const char *at = options;

	while ((at = strstr(at, name))) {
		if ((at == options || at[-1] == ' ') && at[n] == '=') {
			strscpy(buf, at + n + 1, size);
			buf[strcspn(buf, " \n")] = 0;
			return buf;
		}
		at += n;
	}
	return NULL;
}

long stand_number(const char *options, const char *name, long otherwise)
{
	char buf[24];
	long value;

	if (!stand_option(options, name, buf, sizeof(buf)) || kstrtol(buf, 0, &value))
		return otherwise;
	return value;
}

static int set_odds(const char *options)
{
	int i;

	for (i = 0; i < ODD_END; i++)
		WRITE_ONCE(stand_odds[i], stand_number(options, stand_odd_names[i], 0));
	return 0;
}

static int run(char *line, struct seq_buf *out)
{
	char *verb = strsep(&line, " "), *word, *name;
	int i;

	line = line ? line : "";
	if (!strcmp(verb, "nets")) {
		stand_show_nets(out);
		return 0;
	}
	if (!strcmp(verb, "routes")) {
		stand_show_routes(out);
		return 0;
	}
	if (!strcmp(verb, "memory")) {
		stand_memory_left(out);
		return 0;
	}
	if (!strcmp(verb, "counters")) {
		for (i = 0; i < COUNT_END; i++)
			seq_buf_printf(out, "%s %ld\n", count_names[i], atomic_long_read(&stand_counts[i]));
		return 0;
	}
	if (!strcmp(verb, "odd"))
		return set_odds(line);
	if (!strcmp(verb, "test"))
		return stand_test(line, out);
	if (!strcmp(verb, "serve"))
		return strcmp(line, "stop") ? stand_serve(line) : stand_serve_stop();
	word = strsep(&line, " ");
	if (!word || !*word)
		return -EINVAL;
	if (!strcmp(verb, "ping"))
		return stand_ping(word, line ? line : "", out);
	if (!strcmp(verb, "routing"))
		return stand_routing(!strcmp(word, "1"));
	if (!strcmp(verb, "fault"))
		return stand_fault(word, line && *line ? line : NULL);
	name = strsep(&line, " ");
	if (!name || !*name)
		return -EINVAL;
	if (!strcmp(verb, "route") && !strcmp(word, "add") && line)
		return stand_route(name, line);
	if (strcmp(verb, "net"))
		return -EINVAL;
	if (!strcmp(word, "del"))
		return stand_net_del(name, line && *line ? line : NULL);
	if (!strcmp(word, "add")) {
		word = strsep(&line, " ");
		return stand_net_add(name, word, line ? line : "", out);
	}
	return -EINVAL;
}

static int stand_open(struct inode *inode, struct file *file)
{
	struct session *session = kvzalloc(sizeof(*session), GFP_KERNEL);

	if (!session)
		return -ENOMEM;
	file->private_data = session;
	return stream_open(inode, file);
}

static int stand_release(struct inode *inode, struct file *file)
{
	kvfree(file->private_data);
	return 0;
}

static ssize_t stand_write(struct file *file, const char __user *data, size_t len, loff_t *at)
{
	struct session *session = file->private_data;
	struct seq_buf out;
	char *line;
	int rc;

	if (len > 1000)
		return -E2BIG;
	line = memdup_user_nul(data, len);
	if (IS_ERR(line))
		return PTR_ERR(line);
	seq_buf_init(&out, session->result, sizeof(session->result));
	rc = run(strim(line), &out);
	session->len = seq_buf_used(&out);
	kfree(line);
	return rc ? rc : len;
}

static ssize_t stand_read(struct file *file, char __user *data, size_t len, loff_t *at)
{
	struct session *session = file->private_data;
	size_t n = min(len, session->len);

	if (copy_to_user(data, session->result, n))
		return -EFAULT;
	memmove(session->result, session->result + n, session->len - n);
	session->len -= n;
	return n;
}

static const struct file_operations stand_fops = {
	.owner = THIS_MODULE,
	.open = stand_open,
	.release = stand_release,
	.write = stand_write,
	.read = stand_read,
};

static struct miscdevice stand_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "lnet_stand",
	.fops = &stand_fops,
};

static int __init stand_init(void)
{
	int rc = stand_core_init();

	if (rc)
		return rc;
	rc = stand_msg_init();
	if (rc)
		return rc;
	rc = stand_parse_init();
	if (rc)
		goto no_parse;
	rc = stand_work_init();
	if (rc)
		goto no_work;
	rc = misc_register(&stand_device);
	if (!rc)
		return 0;
	stand_work_exit();
no_work:
	stand_parse_exit();
no_parse:
	stand_msg_exit();
	return rc;
}

static void __exit stand_exit(void)
{
	misc_deregister(&stand_device);
	stand_work_exit();
	stand_parse_exit();
	stand_msg_exit();
	stand_memory_exit();
	stand_core_exit();
}

module_init(stand_init);
module_exit(stand_exit);

MODULE_DESCRIPTION("Test aid: stand-in for LNet, without Lustre");
MODULE_LICENSE("GPL");
