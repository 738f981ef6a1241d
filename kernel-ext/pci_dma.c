// SPDX-License-Identifier: GPL-2.0-only
/*
 * DMA operations of devices behind the host bridges of pci_host/. All memory that these devices
 * access is in the bridge's pool.
 */
#include <linux/device.h>
#include <linux/dma-map-ops.h>
#include <linux/gfp.h>
#include <linux/iommu.h>
#include <linux/mm.h>
#include <linux/nodemask.h>
#include <linux/pci.h>
#include <linux/scatterlist.h>
#include <linux/topology.h>
#include "pci_host.h"

static struct extoll_pci_host *host(struct device *dev)
{
	return container_of(to_pci_sysdata(to_pci_dev(dev)->bus), struct extoll_pci_host, sysdata);
}

static bool from_device(enum dma_data_direction dir)
{
	return dir == DMA_FROM_DEVICE || dir == DMA_BIDIRECTIONAL;
}

static bool to_device(enum dma_data_direction dir)
{
	return dir == DMA_TO_DEVICE || dir == DMA_BIDIRECTIONAL;
}

static dma_addr_t pool_map_phys(struct device *dev, phys_addr_t phys, size_t size,
				enum dma_data_direction dir, unsigned long attrs)
{
	struct extoll_pci_host *h = host(dev);
	u64 keep = ~PAGE_MASK | dma_get_min_align_mask(dev);

	/*
	 * Registers or memory of another device are not in the pool. Such addresses can be mapped
	 * only if Pool::add_peer() has registered their BAR.
	 */
	if (attrs & DMA_ATTR_MMIO)
		return h->calls->map_peer(h->pool, phys, size, dma_get_mask(dev));
	/*
	 * The content is copied for each direction, so that bytes that the device does not write
	 * are unchanged afterwards, as they would be without a pool.
	 */
	return h->calls->map(h->pool, phys, size, keep, dma_get_mask(dev),
			     !(attrs & DMA_ATTR_SKIP_CPU_SYNC), dir);
}

static void pool_unmap_phys(struct device *dev, dma_addr_t address, size_t size,
			    enum dma_data_direction dir, unsigned long attrs)
{
	struct extoll_pci_host *h = host(dev);

	if (attrs & DMA_ATTR_MMIO)
		return;
	h->calls->unmap(h->pool, address, size,
			from_device(dir) && !(attrs & DMA_ATTR_SKIP_CPU_SYNC));
}

static void pool_unmap_sg(struct device *dev, struct scatterlist *sgl, int nents,
			  enum dma_data_direction dir, unsigned long attrs)
{
	struct scatterlist *sg;
	int i;

	for_each_sg(sgl, sg, nents, i)
		pool_unmap_phys(dev, sg_dma_address(sg), sg_dma_len(sg), dir, attrs);
}

static int pool_map_sg(struct device *dev, struct scatterlist *sgl, int nents,
		       enum dma_data_direction dir, unsigned long attrs)
{
	struct scatterlist *sg;
	int i;

	for_each_sg(sgl, sg, nents, i) {
		sg->dma_address = pool_map_phys(dev, sg_phys(sg), sg->length, dir, attrs);
		if (sg->dma_address == DMA_MAPPING_ERROR) {
			pool_unmap_sg(dev, sgl, i, dir, attrs | DMA_ATTR_SKIP_CPU_SYNC);
			return -ENOMEM;
		}
		sg_dma_len(sg) = sg->length;
	}
	return nents;
}

static void pool_sync_for_cpu(struct device *dev, dma_addr_t address, size_t size,
			      enum dma_data_direction dir)
{
	struct extoll_pci_host *h = host(dev);

	if (from_device(dir))
		h->calls->sync(h->pool, address, size, false);
}

static void pool_sync_for_device(struct device *dev, dma_addr_t address, size_t size,
				 enum dma_data_direction dir)
{
	struct extoll_pci_host *h = host(dev);

	if (to_device(dir))
		h->calls->sync(h->pool, address, size, true);
}

static void pool_sync_sg_for_cpu(struct device *dev, struct scatterlist *sgl, int nents,
				 enum dma_data_direction dir)
{
	struct scatterlist *sg;
	int i;

	for_each_sg(sgl, sg, nents, i)
		pool_sync_for_cpu(dev, sg_dma_address(sg), sg->length, dir);
}

static void pool_sync_sg_for_device(struct device *dev, struct scatterlist *sgl, int nents,
				    enum dma_data_direction dir)
{
	struct scatterlist *sg;
	int i;

	for_each_sg(sgl, sg, nents, i)
		pool_sync_for_device(dev, sg_dma_address(sg), sg->length, dir);
}

static void *pool_alloc(struct device *dev, size_t size, dma_addr_t *address, gfp_t gfp,
			unsigned long attrs)
{
	struct extoll_pci_host *h = host(dev);

	return h->calls->alloc(h->pool, size, dev->coherent_dma_mask, address);
}

static void pool_free(struct device *dev, size_t size, void *memory, dma_addr_t address,
		      unsigned long attrs)
{
	struct extoll_pci_host *h = host(dev);

	h->calls->free(h->pool, address, size);
}

static struct page *pool_alloc_pages(struct device *dev, size_t size, dma_addr_t *address,
				     enum dma_data_direction dir, gfp_t gfp)
{
	void *memory = pool_alloc(dev, size, address, gfp, 0);

	return memory ? virt_to_page(memory) : NULL;
}

static void pool_free_pages(struct device *dev, size_t size, struct page *page, dma_addr_t address,
			    enum dma_data_direction dir)
{
	pool_free(dev, size, page_address(page), address, 0);
}

static int pool_mmap(struct device *dev, struct vm_area_struct *vma, void *memory,
		     dma_addr_t address, size_t size, unsigned long attrs)
{
	unsigned long pages = PAGE_ALIGN(size) >> PAGE_SHIFT, wanted = vma_pages(vma),
		first = vma_start_pgoff(vma);

	if (first >= pages || wanted > pages - first)
		return -ENXIO;
	return remap_pfn_range(vma, vma->vm_start, page_to_pfn(virt_to_page(memory)) + first,
			       wanted << PAGE_SHIFT, vma->vm_page_prot);
}

static int pool_get_sgtable(struct device *dev, struct sg_table *sgt, void *memory,
			    dma_addr_t address, size_t size, unsigned long attrs)
{
	int err = sg_alloc_table(sgt, 1, GFP_KERNEL);

	if (!err)
		sg_set_page(sgt->sgl, virt_to_page(memory), PAGE_ALIGN(size), 0);
	return err;
}

static int pool_supported(struct device *dev, u64 mask)
{
	struct extoll_pci_host *h = host(dev);

	return h->calls->reach(h->pool, mask);
}

static u64 pool_required_mask(struct device *dev)
{
	struct extoll_pci_host *h = host(dev);

	return h->calls->mask(h->pool);
}

static size_t pool_max_mapping(struct device *dev)
{
	struct extoll_pci_host *h = host(dev);

	return h->calls->largest(h->pool);
}

/* Larger mappings rarely find contiguous slots, and all mappings are copied in any case. */
static size_t pool_opt_mapping(void)
{
	return 128 * 1024;
}

static const struct dma_map_ops pool_ops = {
	.alloc = pool_alloc,
	.free = pool_free,
	.alloc_pages_op = pool_alloc_pages,
	.free_pages = pool_free_pages,
	.mmap = pool_mmap,
	.get_sgtable = pool_get_sgtable,
	.map_phys = pool_map_phys,
	.unmap_phys = pool_unmap_phys,
	.map_sg = pool_map_sg,
	.unmap_sg = pool_unmap_sg,
	.sync_single_for_cpu = pool_sync_for_cpu,
	.sync_single_for_device = pool_sync_for_device,
	.sync_sg_for_cpu = pool_sync_sg_for_cpu,
	.sync_sg_for_device = pool_sync_sg_for_device,
	.dma_supported = pool_supported,
	.get_required_mask = pool_required_mask,
	.max_mapping_size = pool_max_mapping,
	.opt_mapping_size = pool_opt_mapping,
};

void extoll_pci_dma_set(struct pci_dev *pdev)
{
	set_dma_ops(&pdev->dev, &pool_ops);
}

bool extoll_pci_dma_taken(struct pci_dev *pdev)
{
	return device_iommu_mapped(&pdev->dev);
}

void *extoll_contiguous_alloc(size_t pages, int node)
{
	/*
	 * Unlike other allocation functions, alloc_contig_pages() does not check the node number.
	 */
	if (node < 0 || node >= MAX_NUMNODES || !node_online(node))
		node = numa_mem_id();
#ifdef CONFIG_CONTIG_ALLOC
	{
		struct page *page = alloc_contig_pages(pages, GFP_KERNEL | __GFP_NOWARN, node,
						       NULL);

		return page ? memset(page_address(page), 0, pages << PAGE_SHIFT) : NULL;
	}
#else
	/*
	 * The size is limited to 4 MiB, the page allocator's largest block, because
	 * alloc_pages_exact_nid() is not exported.
	 */
	return alloc_pages_exact(pages << PAGE_SHIFT, GFP_KERNEL | __GFP_ZERO | __GFP_NOWARN);
#endif
}

void extoll_contiguous_free(void *memory, size_t pages)
{
#ifdef CONFIG_CONTIG_ALLOC
	free_contig_range(page_to_pfn(virt_to_page(memory)), pages);
#else
	free_pages_exact(memory, pages << PAGE_SHIFT);
#endif
}

void *extoll_ram(phys_addr_t phys, size_t size)
{
	if (!size || phys + size < phys || !pfn_valid(PHYS_PFN(phys)) ||
	    !pfn_valid(PHYS_PFN(phys + size - 1)))
		return NULL;
	return phys_to_virt(phys);
}

bool extoll_is_linear(const void *address)
{
	return virt_addr_valid(address);
}

u64 extoll_linear_phys(const void *address)
{
	return virt_to_phys((void *)address);
}
